"""What the log says of sampled completions, computed again from the traces.

The trainers compute these values once for each generation cycle, over all ranks and in single precision, and log the
mean over the cycles since the row before. TRL's own names and rules are those of ``GRPOTrainer`` 1.14 (``_generate``,
``_generate_and_score_completions`` and ``log``); the shares and the groups of equal rewards are this program's.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from explicit_learning.accounting.ratios import MALFORMED_RATIO, RIGHT_RATIO, TRUNCATED_RATIO
from explicit_learning.errors import found_text
from explicit_learning.plan.log_steps import log_steps
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from explicit_learning.accounting.rows import TraceRow
    from explicit_learning.errors import Context, Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker

__all__ = ["FLAT_SHARE", "SCORED", "TOKENS", "StepScores", "score_faults", "whole_number"]

FLAT_SHARE = "frac_reward_zero_std"
TOKENS = "num_tokens"
# Twice what single precision loses in a sum over a cycle, and in the squares of a deviation.
TOLERANCE = 1e-5
EXACT_PARTS = 1024  # of whole numbers of such parts, single precision has every sum and mean of a cycle


@dataclass(slots=True)
class _Cycle:
    """What was sampled after one number of optimizer steps, by all ranks."""

    lengths: array[int] = field(default_factory=lambda: array("q"))
    ended: array[int] = field(default_factory=lambda: array("q"))  # lengths of completions that were not truncated
    rewards: array[float] = field(default_factory=lambda: array("d"))  # of the same; a truncated one has none
    malformed: int = 0
    right: int = 0
    groups: dict[tuple[str, int], tuple[int, float, float]] = field(default_factory=dict)  # rewards, least, most

    def add(self, row: TraceRow) -> None:
        self.lengths.append(row.token_count)
        self.malformed += not row.valid
        self.right += row.components["answer"] > 0
        count, least, most = self.groups.get((row.slot_id, row.visit), (0, math.inf, -math.inf))
        if row.terminated:
            self.ended.append(row.token_count)
            self.rewards.append(row.total)
            count, least, most = count + 1, min(least, row.total), max(most, row.total)
        self.groups[row.slot_id, row.visit] = count, least, most

    @property
    def truncated_ratio(self) -> float:
        return 1 - len(self.ended) / len(self.lengths)

    def flat_share(self, *, in_groups: bool) -> float:
        """Return the share of completions among whose rewards, at least two, there is no difference."""
        if in_groups:
            return fmean(count > 1 and least == most for count, least, most in self.groups.values())
        return float(len(self.rewards) > 1 and min(self.rewards) == max(self.rewards))


def _deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation with Bessel's correction; ``None`` of fewer than two values."""
    if len(values) < 2:  # noqa: PLR2004 - of one value there is none
        return None
    mean = fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


# By name, a value of one cycle; None where the trainer has NaN, which no mean over cycles holds.
SCORED: Mapping[str, Callable[[_Cycle], float | None]] = {
    MALFORMED_RATIO: lambda cycle: cycle.malformed / len(cycle.lengths),
    TRUNCATED_RATIO: lambda cycle: cycle.truncated_ratio,
    RIGHT_RATIO: lambda cycle: cycle.right / len(cycle.lengths),
    "groups/zero_variance": lambda cycle: sum(least >= most for _, least, most in cycle.groups.values()),
    "completions/mean_length": lambda cycle: _mean(cycle.lengths),
    "completions/min_length": lambda cycle: min(cycle.lengths),
    "completions/max_length": lambda cycle: max(cycle.lengths),
    "completions/clipped_ratio": lambda cycle: cycle.truncated_ratio,
    "completions/mean_terminated_length": lambda cycle: _mean(cycle.ended or [0]),
    "completions/min_terminated_length": lambda cycle: min(cycle.ended, default=0),
    "completions/max_terminated_length": lambda cycle: max(cycle.ended, default=0),
    "reward": lambda cycle: _mean(cycle.rewards),
    "reward_std": lambda cycle: _deviation(cycle.rewards),
    "rewards/answer/mean": lambda cycle: _mean(cycle.rewards),
    "rewards/answer/std": lambda cycle: _deviation(cycle.rewards),
}


class StepScores:
    """What rows of traces say of each generation cycle; of all ranks together."""

    def __init__(self, plan: Plan) -> None:
        """Prepare to take rows.

        Args:
            plan: The plan; it has a reward and an objective.
        """
        self._cycles: dict[int, _Cycle] = {}
        self._in_groups = plan.objective is not None and plan.objective.scale_rewards != "batch"
        weights = () if plan.reward is None else (plan.reward.answer, plan.reward.format, plan.reward.malformed)
        self._is_exact = all((weight * EXACT_PARTS).is_integer() for weight in weights)

    def add(self, row: TraceRow) -> None:
        """Take a row."""
        self._cycles.setdefault(row.optimizer_step, _Cycle()).add(row)

    def between(self, start: int, end: int) -> dict[str, float | None]:
        """Return what is logged of the rows that were sampled after ``start`` steps and before ``end`` were done."""
        cycles = self._of(start, end)
        values = {name: [value(cycle) for cycle in cycles] for name, value in SCORED.items()} if cycles else {}
        return {name: _mean([value for value in found if value is not None]) for name, found in values.items()}

    def flat_shares(self, start: int, end: int) -> tuple[float, float] | None:
        """Return the least and the most that `FLAT_SHARE` can be of these rows; ``None`` without rows.

        Both are equal but where single precision lacks the rewards: their mean is then not always one of them.
        """
        if not (cycles := self._of(start, end)):
            return None
        most = fmean(cycle.flat_share(in_groups=self._in_groups) for cycle in cycles)
        return (most if self._is_exact else 0.0), most

    def tokens(self, start: int, end: int) -> tuple[int, int]:
        """Return how many tokens these rows have, and how many rows there are."""
        cycles = self._of(start, end)
        return sum(sum(cycle.lengths) for cycle in cycles), sum(len(cycle.lengths) for cycle in cycles)

    def _of(self, start: int, end: int) -> list[_Cycle]:
        return [self._cycles[step] for step in range(start, end) if step in self._cycles]


def score_faults(
    tree: Tree, plan: Plan, marker: CompletionMarker, scores: StepScores, context: Context
) -> Iterator[Fault]:
    """Yield the values of the marker's log that the traces contradict; of what was not logged there is none.

    Args:
        tree: The run's files.
        plan: The plan.
        marker: The completion marker; each row of its log has a step.
        scores: The rows of all ranks' traces.
        context: What the faults have in common.
    """
    if [row["step"] for row in marker.log_history] != log_steps(plan.optimisation):
        return  # the faults of the log say so
    at, before, told = context.at(tree.place(layout.COMPLETION_MARKER)), 0, 0

    def fault(number: int, name: str, row: Mapping[str, object], expected: str) -> Fault:
        pointer = f"/log_history/{number}/{name.replace('/', '~1')}"
        return at.fault(pointer=pointer, found=found_text(row[name]), expected=expected)

    for number, row in enumerate(marker.log_history):
        start, before = before, row["step"]
        expected = scores.between(start, before)
        for name in sorted(SCORED.keys() & row.keys()):
            if not _is_close(row[name], right := expected.get(name)):
                yield fault(number, name, row, f"{found_text(right)}, counted in the traces")
        shares = scores.flat_shares(start, before)
        if FLAT_SHARE in row and not _is_between(row[FLAT_SHARE], shares):
            least, most = shares or (None, None)
            bounds = found_text(most) if least == most else f"{found_text(least)} to {found_text(most)}"
            yield fault(number, FLAT_SHARE, row, f"{bounds}, counted in the traces")
        if TOKENS in row:
            wrong = _wrong_tokens(plan, row[TOKENS], told, *scores.tokens(start, before))
            if wrong:
                yield fault(number, TOKENS, row, wrong)
            told = whole_number(row[TOKENS]) or told


def _wrong_tokens(plan: Plan, found: object, before: int, sampled: int, rows: int) -> str | None:
    """Return what was expected instead of a count of tokens so far: those of prompts and completions.

    All completions of a group have the same prompt, whose length no record of the run holds.
    """
    most, group = plan.generation.max_prompt_tokens, plan.generation.num_generations
    least_now, most_now = before + sampled + rows, before + sampled + rows * most
    tokens = whole_number(found)
    if tokens is not None and least_now <= tokens <= most_now and (tokens - before - sampled) % group == 0:
        return None
    prompts = f"{before:,} and {sampled:,} sampled tokens, and those of {rows:,} prompts, {group} of which are the same"
    return f"{least_now:,} to {most_now:,}: {prompts}"


def whole_number(value: object) -> int | None:
    """Return a value of a log that counts something, which a mean made a float; ``None`` of any other."""
    return int(value) if isinstance(value, (int, float)) and float(value).is_integer() else None


def _is_close(found: object, expected: float | None) -> bool:
    if expected is None or not isinstance(found, (int, float)):
        return found is expected
    return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _is_between(found: object, bounds: tuple[float, float] | None) -> bool:
    if bounds is None or not isinstance(found, (int, float)):
        return False
    return bounds[0] - TOLERANCE <= found <= bounds[1] + TOLERANCE
