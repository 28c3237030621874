"""Holm's adjusted p-values are those computed by hand."""

from __future__ import annotations

import pytest

from explicit_learning.report.statistics.holm import holm_adjusted


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        # 4 x 0.005, 3 x 0.01, max(0.03, 2 x 0.03), max(0.06, 1 x 0.04); Wikipedia, Holm-Bonferroni method, its example
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.05], [0.05]),
        ([0.5, 0.6], [1.0, 1.0]),
        ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
        ([], []),
        # A test that could not be made counts: 3 x 0.01, 2 x 0.02
        ([0.01, None, 0.02], [0.03, None, 0.04]),
        ([None, None], [None, None]),
    ],
)
def test_adjusted_values_are_those_by_hand(p_values: list[float | None], adjusted: list[float | None]) -> None:
    assert holm_adjusted(p_values) == pytest.approx(adjusted)
