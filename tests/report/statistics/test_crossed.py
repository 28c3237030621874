"""The crossed bootstrap: its statistic, its distribution on a case that can be enumerated, and its draws."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from explicit_learning.report.statistics.crossed import (
    crossed_bootstrap,
    percentile_interval,
    resampled_differences,
)

# Two seeds, three items; the third item has two rows.
GAINED = np.array([[1, 0, -1], [1, 1, 2]])
ROWS = np.array([1, 1, 2])
SEEDS, ITEMS = GAINED.shape


def counts(drawn: tuple[int, ...], size: int) -> list[int]:
    return [drawn.count(index) for index in range(size)]


def every_resample() -> tuple[np.ndarray, np.ndarray, list[Fraction]]:
    """Return all 2² · 3³ equally likely resamples, and the difference of each, drawn answer by drawn answer."""
    resamples = list(
        itertools.product(itertools.product(range(SEEDS), repeat=SEEDS), itertools.product(range(ITEMS), repeat=ITEMS))
    )
    exact = [
        Fraction(
            sum(int(GAINED[seed, item]) for seed in seeds for item in items),
            SEEDS * sum(int(ROWS[item]) for item in items),
        )
        for seeds, items in resamples
    ]
    return (
        np.array([counts(seeds, SEEDS) for seeds, _ in resamples]),
        np.array([counts(items, ITEMS) for _, items in resamples]),
        exact,
    )


def test_each_of_all_resamples_has_the_difference_of_its_answers() -> None:
    seed_counts, item_counts, exact = every_resample()
    assert len(exact) == 108
    assert resampled_differences(GAINED, ROWS, seed_counts, item_counts).tolist() == [float(value) for value in exact]


def test_the_exact_interval_is_read_off_the_enumeration() -> None:
    *_, exact = every_resample()
    ordered = sorted(exact)
    # 108 equally likely values: 2.5 % is the 3rd smallest (3 / 108 is the first share of at least 0.025), 97.5 % the
    # 106th (106 / 108 is the first of at least 0.975).
    expected = (float(ordered[2]), float(ordered[105]))
    assert percentile_interval(np.array(exact, dtype=np.float64), level=0.95) == expected


def test_drawn_differences_have_the_distribution_of_all_resamples() -> None:
    *_, exact = every_resample()
    ordered = sorted(exact)
    for level in (0.5, 0.8, 0.9):
        (found,) = crossed_bootstrap([GAINED], ROWS, key="tiny", level=level, draws=20_000)
        # Ends lie between the exact quantiles of shares that 20,000 draws hit within 4 standard errors (0.4 % each).
        for end, share in zip(found.interval, ((1 - level) / 2, (1 + level) / 2), strict=True):
            low, high = (ordered[min(107, max(0, round((share + by) * 108)))] for by in (-0.025, 0.015))
            assert float(low) <= end <= float(high)
    assert found.difference == float(Fraction(4, 8))


def test_one_draw_is_as_likely_as_another() -> None:
    gains = [np.eye(1, 3, item, dtype=np.int64) for item in range(3)]
    rows = np.array([1, 1, 1])
    intervals = [found.interval for found in crossed_bootstrap(gains, rows, key="fair", level=0.5)]
    assert intervals == [(0.0, 2 / 3)] * 3  # Binomial(3, 1/3): P(0) = 0.296, P(≤ 1) = 0.741, so quartiles 0 and 2


def test_the_same_key_draws_the_same_and_another_key_does_not() -> None:
    gained = np.array([[(item * 7 + seed * 3) % 3 - 1 for item in range(50)] for seed in range(4)])
    rows = np.ones(50, dtype=np.int64)

    def interval(key: str) -> tuple[float, float]:
        return crossed_bootstrap([gained], rows, key=key, level=0.95, draws=999)[0].interval

    assert interval("a") == interval("a")
    assert len({interval(key) for key in "abcdef"}) > 1


def test_several_differences_see_the_same_draws() -> None:
    rows = np.ones(6, dtype=np.int64)
    gained = np.array([[1, 0, 0, 1, -1, 1], [0, 0, 1, 1, 0, 1]])
    alone = crossed_bootstrap([gained], rows, key="k", level=0.9)
    both = crossed_bootstrap([-gained, gained], rows, key="k", level=0.9)
    assert both[1] == alone[0]
    assert both[0].difference == -both[1].difference


def test_with_one_seed_only_items_are_resampled() -> None:
    gained, rows = np.array([[1, 0, 0, 1, 1]]), np.ones(5, dtype=np.int64)
    (found,) = crossed_bootstrap([gained], rows, key="k", level=0.95)
    again = resampled_differences(gained, rows, np.array([[1]]), np.array([[5, 0, 0, 0, 0], [0, 3, 2, 0, 0]]))
    assert again.tolist() == [1.0, 0.0]
    # Binomial(5, 3/5): P(0) = 0.0102, P(≤ 1) = 0.087, P(≤ 4) = 0.922
    assert found.interval == (0.2, 1.0)


def test_equal_answers_have_no_spread() -> None:
    (found,) = crossed_bootstrap([np.zeros((3, 4), dtype=np.int64)], np.ones(4, dtype=np.int64), key="k", level=0.95)
    assert (found.difference, found.interval) == (0.0, (0.0, 0.0))


def test_no_difference_needs_no_draws() -> None:
    assert crossed_bootstrap([], np.ones(4, dtype=np.int64), key="k", level=0.95) == []


@pytest.mark.parametrize("draws", [1, 499, 500, 501, 1001])
def test_every_draw_resamples_as_many_seeds_and_items_as_there_are(draws: int) -> None:
    ones = np.ones((3, 5), dtype=np.int64)
    (found,) = crossed_bootstrap([ones], np.ones(5, dtype=np.int64), key="k", level=0.95, draws=draws)
    assert Counter(found.interval) == Counter({1.0: 2})
