"""Points of curves are means of equally many steps, and the mean over seeds is taken step by step."""

from __future__ import annotations

import pytest

from explicit_learning.report.compare.curves import POINTS, curve_window, mean_curve, run_curve
from explicit_learning.report.compare.document import CurvePoint


@pytest.mark.parametrize(("steps", "window"), [(1, 1), (50, 1), (51, 2), (80, 2), (1000, 20), (10**6, 20_000)])
def test_no_curve_has_more_than_fifty_points(steps: int, window: int) -> None:
    assert curve_window(steps) == window
    assert -(-steps // window) <= POINTS


def test_a_point_is_the_mean_of_its_steps_and_lies_at_the_last() -> None:
    rewards = [(1, 0.0, 10), (2, 1.0, 30), (4, 0.5, 70), (5, 0.25, 100)]
    curve = run_curve(rewards, arm="papo", seed=3, window=2)
    assert curve.points == (
        CurvePoint(step=2, tokens=20.0, reward=0.5),
        CurvePoint(step=4, tokens=70.0, reward=0.5),  # step 3 had no reward
        CurvePoint(step=5, tokens=100.0, reward=0.25),
    )
    assert (curve.arm, curve.seed, curve.seeds) == ("papo", 3, 1)


def test_a_million_steps_become_fifty_points() -> None:
    curve = run_curve(((step, 1.0, step) for step in range(1, 10**6 + 1)), arm="papo", seed=0, window=20_000)
    assert len(curve.points) == POINTS
    assert curve.points[0] == CurvePoint(step=20_000, tokens=10_000.5, reward=1.0)


def test_the_mean_over_seeds_has_the_steps_that_all_have() -> None:
    one = run_curve([(1, 0.0, 10), (2, 1.0, 20), (3, 1.0, 30)], arm="papo", seed=0, window=1)
    two = run_curve([(1, 0.5, 20), (2, 0.5, 40)], arm="papo", seed=1, window=1)
    mean = mean_curve([one, two])
    assert mean.points == (
        CurvePoint(step=1, tokens=15.0, reward=0.25),
        CurvePoint(step=2, tokens=30.0, reward=0.75),
    )
    assert (mean.seed, mean.seeds) == (None, 2)
