"""The t interval is the one of tables and of scipy, and there is none where nothing varies."""

from __future__ import annotations

import math

import pytest
from scipy.stats import ttest_1samp, ttest_rel

from explicit_learning.report.statistics.paired import paired_t

# Student's own example (Biometrika 6, 1908, p. 20): hours of sleep gained by ten patients with two drugs.
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
T_9 = 2.262  # of 0.975 with 9 degrees of freedom, from Student's table


def test_students_own_example_gives_his_numbers() -> None:
    differences = [b - a for a, b in zip(FIRST, SECOND, strict=True)]
    found = paired_t(differences)
    assert (found.pairs, found.mean) == (10, pytest.approx(1.58))
    assert found.deviation == pytest.approx(1.17 * math.sqrt(10 / 9), abs=0.005)  # he divides by n
    assert found.interval is not None
    half = T_9 * found.deviation / math.sqrt(10)
    assert found.interval == pytest.approx((1.58 - half, 1.58 + half), abs=1e-3)
    same = ttest_rel(SECOND, FIRST)
    low, high = same.confidence_interval(0.95)
    assert found.interval == pytest.approx((low, high), rel=1e-12)
    assert (found.statistic, found.p_value) == (pytest.approx(same.statistic), pytest.approx(same.pvalue))


@pytest.mark.parametrize("differences", [[0.1, 0.3], [-0.02, -0.02, -0.04], [0.5, -0.5], [1e-9, 3e-9, 1.0]])
def test_few_pairs_give_what_scipy_gives(differences: list[float]) -> None:
    found, same = paired_t(differences), ttest_1samp(differences, 0.0)
    assert found.p_value == pytest.approx(same.pvalue, rel=1e-9)
    assert found.interval == pytest.approx(tuple(same.confidence_interval(0.95)), rel=1e-9)


def test_a_wider_level_gives_a_wider_interval() -> None:
    narrow, wide = (paired_t([0.1, 0.2, 0.4], level=level).interval for level in (0.9, 0.99))
    assert narrow is not None
    assert wide is not None
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize("differences", [[0.0, 0.0, 0.0], [0.02] * 5, [0.1 + 0.2, 0.3]])
def test_equal_differences_have_a_mean_and_no_interval(differences: list[float]) -> None:
    found = paired_t(differences)
    assert found.mean == pytest.approx(differences[0])
    assert (found.interval, found.statistic, found.p_value) == (None, None, None)


def test_one_pair_has_a_mean_and_nothing_else() -> None:
    found = paired_t([0.25])
    assert (found.pairs, found.mean, found.deviation, found.interval, found.p_value) == (1, 0.25, None, None, None)


def test_no_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="no differences"):
        paired_t([])
