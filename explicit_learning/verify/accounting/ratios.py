"""What the log says of completions' scores, computed again from the traces."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from explicit_learning.accounting.ratios import MALFORMED_RATIO, RIGHT_RATIO, TRUNCATED_RATIO
from explicit_learning.errors import found_text
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from explicit_learning.accounting.rows import TraceRow
    from explicit_learning.errors import Context, Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.completion_marker import CompletionMarker

__all__ = ["ScoreCounts", "ratio_faults"]

COUNTED: Mapping[str, Callable[[TraceRow], bool]] = {
    MALFORMED_RATIO: lambda row: not row.valid,
    TRUNCATED_RATIO: lambda row: not row.terminated,
    RIGHT_RATIO: lambda row: row.components["answer"] > 0,
}
# Means that the trainer logs in single precision, by what is added up of a row.
MEANS: Mapping[str, Callable[[TraceRow], float]] = {
    "reward": lambda row: row.total,
    "completions/mean_length": lambda row: row.token_count,
}
SINGLE_PRECISION = 1e-6
ROWS = "rows"
TOLERANCE = 1e-9  # a logged value is a mean of ratios, and this one is a ratio of sums


class ScoreCounts:
    """How many rows of traces there are of each step, and how many of each kind; of all ranks together."""

    def __init__(self) -> None:
        self._by_step: dict[int, Counter[str]] = {}
        self._sums: dict[int, dict[str, float]] = {}

    def add(self, row: TraceRow) -> None:
        """Count a row."""
        counts = self._by_step.setdefault(row.optimizer_step, Counter())
        counts[ROWS] += 1
        counts.update(name for name, holds in COUNTED.items() if holds(row))
        sums = self._sums.setdefault(row.optimizer_step, dict.fromkeys(MEANS, 0.0))
        for name, value in MEANS.items():
            sums[name] += value(row)

    def between(self, start: int, end: int) -> Counter[str]:
        """Return the counts of the rows that were sampled after ``start`` steps and before ``end`` were done."""
        return sum((self._by_step.get(step, Counter()) for step in range(start, end)), Counter[str]())

    def mean(self, name: str, start: int, end: int) -> float | None:
        """Return a mean over the rows between two steps; ``None`` if the trainer's own leaves some of them out.

        A truncated completion has no reward in the trainer's mean.
        """
        counts = self.between(start, end)
        if not counts[ROWS] or (name == "reward" and counts[TRUNCATED_RATIO]):
            return None
        return sum(self._sums[step][name] for step in range(start, end) if step in self._sums) / counts[ROWS]


def ratio_faults(tree: Tree, marker: CompletionMarker, counts: ScoreCounts, context: Context) -> Iterator[Fault]:
    """Yield the values of the marker's log that the traces contradict; a ratio that was not logged is not missed.

    Args:
        tree: The run's files.
        marker: The completion marker.
        counts: The rows of all ranks' traces.
        context: What the faults have in common.
    """
    at, before = context.at(tree.place(layout.COMPLETION_MARKER)), 0
    for number, row in enumerate(marker.log_history):
        start, before = before, row["step"]
        counted = counts.between(start, before)
        for name in sorted(MEANS.keys() & row.keys()):
            mean = counts.mean(name, start, before)
            if None not in {mean, row[name]} and not _is_close(row[name], mean, SINGLE_PRECISION):
                yield at.fault(
                    pointer=f"/log_history/{number}/{name.replace('/', '~1')}",
                    found=found_text(row[name]),
                    expected=f"{found_text(mean)}, the mean of the traces",
                )
        for name in sorted(COUNTED.keys() & row.keys()):
            expected = counted[name] / counted[ROWS] if counted[ROWS] else None
            if not _is_close(row[name], expected):
                yield at.fault(
                    pointer=f"/log_history/{number}/{name.replace('/', '~1')}",
                    found=found_text(row[name]),
                    expected=f"{found_text(expected)}, counted in the traces",
                )


def _is_close(found: object, expected: float | None, tolerance: float = TOLERANCE) -> bool:
    if expected is None or not isinstance(found, (int, float)):
        return found is expected
    return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
