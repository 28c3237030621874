"""When a sampler is probed, and how far it may be from the trainer."""

from __future__ import annotations

import pytest

from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.probes import planned_probes, probe_tolerance
from explicit_learning.plan.typed_plan import Plan
from tests.support.plans import plan_with


@pytest.mark.parametrize(
    ("steps", "warm_up", "iterations", "interval", "expected"),
    [
        (10, 0.0, 1, 4, {1: "first_step", 4: "interval", 8: "interval"}),
        # A warm-up's first step has a learning rate of 0.
        (10, 0.1, 1, 4, {2: "first_step", 4: "interval", 8: "interval"}),
        (10, 0.1, 1, 2, {2: "first_step", 4: "interval", 6: "interval", 8: "interval", 10: "interval"}),
        (12, 0.0, 3, 4, {3: "first_step", 6: "interval", 9: "interval", 12: "interval"}),
        (12, 0.0, 3, 100, {3: "first_step"}),
        (4, 0.0, 1, 1, {1: "first_step", 2: "interval", 3: "interval", 4: "interval"}),
    ],
)
def test_when_a_sampler_is_probed(
    steps: int, warm_up: float, iterations: int, interval: int, expected: dict[int, str]
) -> None:
    plan = from_json(
        Plan,
        plan_with(
            {
                "/optimisation/max_steps": steps,
                "/optimisation/warmup_ratio": warm_up,
                "/objective/num_iterations": iterations,
                "/generation/probe_interval": interval,
            }
        ),
    )
    assert dict(planned_probes(plan)) == {0: "start", **expected}


@pytest.mark.parametrize(
    ("named", "first", "expected"),
    [(None, None, 0.1), (None, 0.001, 0.02), (None, 0.5, 1.5), (0.3, None, 0.3), (0.3, 0.5, 0.3)],
)
def test_the_tolerance_is_the_plans_or_follows_from_the_first_gap(
    named: float | None, first: float | None, expected: float
) -> None:
    plan = from_json(Plan, plan_with({"/generation/probe_tolerance": named}))
    assert probe_tolerance(plan, first=first) == expected
