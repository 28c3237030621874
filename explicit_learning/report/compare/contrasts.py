"""Differences between arms and the baseline, paired by seed and base item, with both of their intervals."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from explicit_learning.report.compare.document import Contrast
from explicit_learning.report.compare.measures import totals
from explicit_learning.report.statistics.crossed import crossed_bootstrap
from explicit_learning.report.statistics.holm import holm_adjusted
from explicit_learning.report.statistics.paired import LEVEL, paired_t

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from explicit_learning.report.compare.measures import ItemCount, Measured
    from explicit_learning.report.statistics.crossed import Resampled

    Arms = Mapping[str, Mapping[int, Measured]]  # by arm and seed

__all__ = ["PRIMARY_SEEDS", "contrasts_of"]

# With fewer, the spread over seeds is hardly known: t intervals of 2 seeds are 12.7 standard errors to each side.
PRIMARY_SEEDS = 5


def contrasts_of(arms: Arms, *, baseline: str, measures: Sequence[str], key: str) -> tuple[Contrast, ...]:
    """Return the differences of all arms to the baseline, by measure, in the order of the arms.

    Args:
        arms: What each arm's runs answered, by seed; every run answered the same rows.
        baseline: The arm that the others are compared with.
        measures: The measures.
        key: What the draws of the bootstrap depend on.
    """
    shared = {
        arm: tuple(sorted(arms[arm].keys() & arms[baseline].keys()))
        for arm in arms
        if arm != baseline and arms[arm].keys() & arms[baseline].keys()
    }
    return tuple(contrast for name in measures for contrast in _of_measure(name, arms, baseline, shared, key))


def _of_measure(
    name: str, arms: Arms, baseline: str, shared: Mapping[str, tuple[int, ...]], key: str
) -> Iterator[Contrast]:
    """Yield the differences of all arms in one measure; their p-values are adjusted together."""
    resampled = _resampled(name, arms, baseline, shared, key)
    found = []
    for arm, seeds in shared.items():
        differences = tuple(_difference(arms[arm][seed][name], arms[baseline][seed][name]) for seed in seeds)
        tested = paired_t(differences)
        found.append(
            Contrast(
                measure=name,
                arm=arm,
                baseline=baseline,
                seeds=seeds,
                left_out_seeds=tuple(sorted(arms[arm].keys() ^ arms[baseline].keys())),
                differences=differences,
                mean=tested.mean,
                grade=_grade(len(seeds)),
                t_interval=tested.interval,
                t_statistic=tested.statistic,
                p_value=tested.p_value,
                adjusted_p_value=None,
                bootstrap_interval=resampled[arm].interval,
            )
        )
    adjusted = holm_adjusted([contrast.p_value for contrast in found])
    for contrast, value in zip(found, adjusted, strict=True):
        yield replace(contrast, adjusted_p_value=value)


def _grade(seeds: int) -> str:
    if seeds >= PRIMARY_SEEDS:
        return "primary"
    return "weak" if seeds > 1 else "none"


def _resampled(
    name: str, arms: Arms, baseline: str, shared: Mapping[str, tuple[int, ...]], key: str
) -> dict[str, Resampled]:
    """Return the bootstrap of each arm; arms with the same seeds see the same draws."""
    import numpy as np

    together: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for arm, seeds in shared.items():
        together[seeds].append(arm)
    found: dict[str, Resampled] = {}
    for seeds, members in together.items():
        base = _right(arms[baseline], seeds, name)
        gains = [_right(arms[arm], seeds, name) - base for arm in members]
        items: Mapping[str, ItemCount] = arms[baseline][seeds[0]][name]
        rows = np.array([count.rows for count in items.values()], dtype=np.int64)
        found |= zip(members, crossed_bootstrap(gains, rows, key=key, level=LEVEL), strict=True)
    return found


def _right(runs: Mapping[int, Measured], seeds: Sequence[int], name: str) -> npt.NDArray[np.int64]:
    """Return how many rows of each base item each seed's run has right, int[seeds, items]."""
    import numpy as np

    return np.array([[count.right for count in runs[seed][name].values()] for seed in seeds], dtype=np.int64)


def _difference(one: Mapping[str, ItemCount], other: Mapping[str, ItemCount]) -> float:
    """Return the difference of two rates over the same rows."""
    ours, theirs = totals(one), totals(other)
    return (ours.right - theirs.right) / ours.rows
