"""Curves of reward against sampled tokens: one for each run, and the mean over an arm's seeds.

All curves have points at the same optimizer steps, because arms of one experiment use the same slots at the same steps.
So the mean over seeds is taken step by step, of rewards and of tokens, and nothing is interpolated.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING

from explicit_learning.report.compare.document import Curve, CurvePoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["POINTS", "curve_window", "mean_curve", "run_curve"]

# Points of a curve, at most. A step's reward is of few completions, so a curve of single steps would mostly show noise.
POINTS = 50


def curve_window(steps: int) -> int:
    """Return how many optimizer steps each point is a mean of, if the longest run has a number of them."""
    return max(1, -(-steps // POINTS))


def run_curve(rewards: Iterable[tuple[int, float, int]], *, arm: str, seed: int, window: int) -> Curve:
    """Return the curve of one run; no more than its points are in memory.

    Args:
        rewards: Step, mean reward and tokens sampled so far, by step.
        arm: The run's arm.
        seed: Its seed.
        window: Steps of each point; the point lies at the last of them.
    """
    sums: dict[int, tuple[int, int, float, int]] = {}
    for step, reward, tokens in rewards:
        point = -(-step // window)
        _, count, total, all_tokens = sums.get(point, (0, 0, 0.0, 0))
        sums[point] = step, count + 1, total + reward, all_tokens + tokens
    points = tuple(
        CurvePoint(step=step, tokens=tokens / count, reward=total / count)
        for _, (step, count, total, tokens) in sorted(sums.items())
    )
    return Curve(arm=arm, seed=seed, seeds=1, points=points)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean of several curves of one arm, at the steps that all of them have.

    Args:
        curves: At least one.
    """
    at: dict[int, list[CurvePoint]] = defaultdict(list)
    for curve in curves:
        for point in curve.points:
            at[point.step].append(point)
    points = tuple(
        CurvePoint(
            step=step, tokens=fmean(point.tokens for point in found), reward=fmean(point.reward for point in found)
        )
        for step, found in sorted(at.items())
        if len(found) == len(curves)
    )
    return Curve(arm=curves[0].arm, seed=None, seeds=len(curves), points=points)
