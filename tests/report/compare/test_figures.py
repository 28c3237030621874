"""Figures are written with a sign, a unit and no more digits than a reader needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from explicit_learning.report.compare.document import Contrast
from explicit_learning.report.compare.figures import interval_points, p_text, percent, points, seeds_text, shows

CONTRAST = Contrast(
    measure="full_accuracy",
    arm="papo",
    baseline="answer_grpo",
    seeds=(0, 1, 2, 3, 4),
    left_out_seeds=(),
    differences=(0.1, 0.2, 0.1, 0.2, 0.1),
    mean=0.14,
    grade="primary",
    t_interval=(0.07, 0.21),
    t_statistic=5.7,
    p_value=0.005,
    adjusted_p_value=0.01,
    bootstrap_interval=(0.05, 0.2),
)


def test_differences_are_in_percentage_points_with_a_sign() -> None:
    assert [points(value) for value in (0.125, -0.125, 0.0, -0.0, 0.0004, -0.0004)] == [
        *("+12.5", "−12.5", "0.0", "0.0", "0.0", "0.0")
    ]
    assert (interval_points((-0.1, 0.2)), interval_points(None)) == ("[−10.0, +20.0]", "–")
    assert percent(0.9) == "90.0 %"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.00001, "< 0.0001"), (0.0123456, "0.0123"), (0.049999, "0.0500"), (0.05, "0.05"), (1.0, "1.00")],
)
def test_p_values_have_digits_where_these_matter(value: float | None, text: str) -> None:
    assert p_text(value) == text


@pytest.mark.parametrize(
    ("seeds", "text"),
    [((3,), "3"), ((0, 1), "0, 1"), ((0, 1, 2), "0 to 2"), ((5, 0, 1, 2, 7, 8, 9), "0 to 2, 5, 7 to 9"), ((), "")],
)
def test_seeds_that_follow_each_other_are_written_as_a_range(seeds: tuple[int, ...], text: str) -> None:
    assert seeds_text(seeds) == text


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "higher"),
        ({"mean": -0.14}, "lower"),
        ({"adjusted_p_value": 0.05}, None),
        ({"grade": "weak"}, None),
        ({"adjusted_p_value": None}, None),
    ],
)
def test_an_arm_is_called_higher_only_by_a_primary_p_value_below_5_percent(
    changes: dict[str, float | str | None], word: str | None
) -> None:
    assert shows(replace(CONTRAST, **changes)) == word  # type: ignore[arg-type] # fields of several types
