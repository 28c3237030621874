"""Student's t interval of differences that are paired by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LEVEL", "PairedT", "paired_t"]

# Share of intervals that are to hold the true difference.
LEVEL = 0.95
LEAST_PAIRS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedT:
    """A mean difference, and what its spread over pairs says about it.

    Attributes:
        pairs: Number of pairs.
        mean: Mean difference.
        deviation: Standard deviation of the differences, with the divisor n - 1; ``None`` with one pair.
        interval: Ends of the interval; ``None`` with one pair, and where all differences are equal: these show no
            spread, and an interval without length would claim to know the difference exactly.
        statistic: Mean divided by its standard error; ``None`` as for the interval.
        p_value: Two-sided p-value of no difference; ``None`` as for the interval.
    """

    pairs: int
    mean: float
    deviation: float | None
    interval: tuple[float, float] | None
    statistic: float | None
    p_value: float | None


def paired_t(differences: Sequence[float], *, level: float = LEVEL) -> PairedT:
    """Return the mean of paired differences with its t interval and the p-value of the paired t test.

    Interval: mean ± t(n - 1, (1 + level) / 2) · s / √n. Source: Student, The Probable Error of a Mean, Biometrika 6,
    1908, 1-25. It holds where the differences of all possible seeds are roughly normal.

    Args:
        differences: One difference for each pair, float[n]; n is at least 1.
        level: Share of intervals that are to hold the true mean, between 0 and 1.

    Raises:
        ValueError: If there is no difference.
    """
    if not differences:
        raise ValueError("no differences")
    pairs, mean = len(differences), fmean(differences)
    deviation = stdev(differences) if pairs >= LEAST_PAIRS else None
    if deviation is None or math.isclose(max(differences), min(differences), rel_tol=0.0, abs_tol=1e-12):
        return PairedT(pairs=pairs, mean=mean, deviation=deviation, interval=None, statistic=None, p_value=None)
    from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped] # SciPy ships no types

    error, freedom = deviation / math.sqrt(pairs), pairs - 1
    half = float(stdtrit(freedom, (1 + level) / 2)) * error
    statistic = mean / error
    return PairedT(
        pairs=pairs,
        mean=mean,
        deviation=deviation,
        interval=(mean - half, mean + half),
        statistic=statistic,
        p_value=min(1.0, 2 * float(stdtr(freedom, -abs(statistic)))),
    )
