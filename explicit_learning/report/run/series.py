"""A run's metrics as series that fit on a page, whatever the number of its steps.

Steps are put into buckets of equal width; of each bucket the mean, the smallest and the largest value are kept. So a
peak of one step in a million is still seen, and memory does not grow with the run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["BUCKETS", "LARGEST", "Bucket", "Metrics", "bucketed"]

BUCKETS = 400
MOST_BUCKETS = 2 * BUCKETS
LARGEST = 1e100  # beyond it, sums of values and the ticks of an axis may overflow


@dataclass(slots=True, kw_only=True)
class Bucket:
    """The values of a metric at some steps that follow one another.

    Attributes:
        step: The last of these steps.
        count: Number of values.
        total: Their sum.
        low: The smallest.
        high: The largest.
    """

    step: int
    count: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return self.total / self.count

    def add(self, step: int, value: float) -> None:
        """Count a value."""
        self.step = step
        self.count += 1
        self.total += value
        self.low, self.high = min(self.low, value), max(self.high, value)


@dataclass(slots=True, kw_only=True)
class Metrics:
    """The metrics of a run.

    Attributes:
        window: Steps of each bucket; 1 for a run that is shown as it is.
        steps: The last step that was logged.
        rows: Number of rows.
        series: Buckets by metric, in order of their steps; a metric without a finite value is left out.
        left_out: Number of values that are not finite or are beyond `LARGEST`, by metric.
    """

    window: int
    steps: int = 0
    rows: int = 0
    series: dict[str, list[Bucket]] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


def bucketed(rows: Iterable[tuple[int, Mapping[str, float | None]]], *, steps: int) -> Metrics:
    """Return a run's metrics, from its rows in order of their steps.

    Args:
        rows: Step and values by metric; ``None`` stands for a value that is not finite.
        steps: Number of steps that the run has come to, which decides the width of the buckets; it is doubled as often
            as rows go on far beyond them.
    """
    found = Metrics(window=max(1, -(-steps // BUCKETS)))
    series: dict[str, list[Bucket]] = defaultdict(list)
    left_out: dict[str, int] = defaultdict(int)
    for step, values in rows:
        found.rows += 1
        found.steps = step
        for name, value in values.items():
            if value is None or abs(value) > LARGEST:
                left_out[name] += 1
                continue
            buckets = series[name]
            if not buckets or (buckets[-1].step - 1) // found.window != (step - 1) // found.window:
                buckets.append(Bucket(step=step))
            buckets[-1].add(step, value)
            while len(buckets) > MOST_BUCKETS:  # a damaged file has more steps than the run
                found.window *= 2
                for known in series.values():
                    known[:] = _merged(known, found.window)
    found.series, found.left_out = dict(series), dict(left_out)
    return found


def _merged(buckets: Iterable[Bucket], window: int) -> list[Bucket]:
    """Return buckets put together into wider ones of `window` steps."""
    wider: list[Bucket] = []
    for one in buckets:
        if not wider or (wider[-1].step - 1) // window != (one.step - 1) // window:
            wider.append(one)
            continue
        last = wider[-1]
        last.step, last.count, last.total = one.step, last.count + one.count, last.total + one.total
        last.low, last.high = min(last.low, one.low), max(last.high, one.high)
    return wider
