"""The crossed bootstrap: an interval of a difference that depends on seeds and on base items at once.

Every seed answers every base item, so answers are correlated in rows and in columns. Resampling answers one by one
would treat them as independent, and give intervals that are far too short. Here seeds and items are resampled
separately, and an answer counts as often as its seed was drawn times as often as its item was drawn.

Source: A. B. Owen, The Pigeonhole Bootstrap, Annals of Applied Statistics 1(2), 2007, 386-411: with many seeds and many
items its variance is not too small. With few seeds it is: the variance between S seeds is estimated with the divisor S,
so too small by the factor (S - 1) / S. With one seed only items are resampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.keys import keyed_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    Counts = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

__all__ = ["DRAWS", "Resampled", "crossed_bootstrap", "percentile_interval", "resampled_differences"]

DRAWS = 10_000
DOMAIN = "explicit-learning/crossed-bootstrap/1"
# Draws that are made at once. It decides which draw gets what from the generator, so it belongs to the domain.
CHUNK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampled:
    """A difference of two rates, and its interval from resampled seeds and items.

    Attributes:
        difference: The difference of the rates as they are.
        interval: Ends of the percentile interval.
    """

    difference: float
    interval: tuple[float, float]


def crossed_bootstrap(
    gains: Sequence[Counts], rows: Counts, *, key: str, level: float, draws: int = DRAWS
) -> list[Resampled]:
    """Return the intervals of differences of rates over the same seeds and items; all of them see the same draws.

    Args:
        gains: For each pair of arms, how many more of an item's rows one arm has right than the other,
            int[seeds, items].
        rows: Rows of each item, int[items]; at least 1 each.
        key: What the draws depend on, beside the numbers of seeds and items: the same key gives the same draws on every
            machine.
        level: Share of intervals that are to hold the true difference, between 0 and 1.
        draws: How often seeds and items are resampled.
    """
    import numpy as np

    if not gains:
        return []
    seeds, items = gains[0].shape
    found = np.empty((len(gains), draws), dtype=np.float64)
    start = 0
    for seed_counts, item_counts in _keyed_counts(seeds, items, key, draws):
        end = start + len(seed_counts)
        for index, gained in enumerate(gains):
            found[index, start:end] = resampled_differences(gained, rows, seed_counts, item_counts)
        start = end
    seed_once, item_once = np.ones((1, seeds), dtype=np.int64), np.ones((1, items), dtype=np.int64)
    return [
        Resampled(
            difference=float(resampled_differences(gained, rows, seed_once, item_once)[0]),
            interval=percentile_interval(drawn, level=level),
        )
        for gained, drawn in zip(gains, found, strict=True)
    ]


def resampled_differences(gained: Counts, rows: Counts, seed_counts: Counts, item_counts: Counts) -> Floats:
    """Return the difference of two rates in each of several resamples, float[draws].

    Args:
        gained: How many more of an item's rows one arm has right than the other, int[seeds, items].
        rows: Rows of each item, int[items].
        seed_counts: How often each seed was drawn, int[draws, seeds].
        item_counts: How often each item was drawn, int[draws, items].
    """
    import numpy as np

    # As doubles, whose products are fast; whole numbers below 2⁵³ stay exact, in any order of sums.
    by_item = seed_counts.astype(np.float64) @ gained.astype(np.float64)
    of = seed_counts.sum(axis=1) * (item_counts @ rows)
    return np.asarray((by_item * item_counts).sum(axis=1) / of, dtype=np.float64)


def percentile_interval(values: Floats, *, level: float) -> tuple[float, float]:
    """Return the central interval that holds a share of some values; both ends are among the values.

    Args:
        values: What was drawn, float[draws].
        level: The share, between 0 and 1.
    """
    import numpy as np

    tail = (1 - level) / 2
    low, high = np.quantile(values, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def _keyed_counts(seeds: int, items: int, key: str, draws: int) -> Iterator[tuple[Counts, Counts]]:
    """Yield how often each seed and each item is drawn, in parts: int[n, seeds] and int[n, items]."""
    import numpy as np

    digest = keyed_digest(DOMAIN, key, seeds, items)
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "big")))
    for start in range(0, draws, CHUNK):
        many = min(CHUNK, draws - start)
        yield _counts(generator, many, seeds), _counts(generator, many, items)


def _counts(generator: np.random.Generator, many: int, size: int) -> Counts:
    """Return how often each of some things is drawn if as many are drawn with replacement, int[many, size]."""
    import numpy as np

    drawn = generator.integers(0, size, size=(many, size)) + np.arange(many)[:, None] * size
    return np.bincount(drawn.ravel(), minlength=many * size).reshape(many, size)
