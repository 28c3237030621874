"""The learning rate of each step: values worked out by hand, and those of the trainers' own scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.idle_settings import warmup_steps
from explicit_learning.plan.learning_rate import learning_rate
from explicit_learning.plan.typed_plan import Plan
from tests.support.plans import plan_with

if TYPE_CHECKING:
    from explicit_learning.plan.typed_plan import Optimisation


def optimisation(**changes: Any) -> Optimisation:
    return from_json(Plan, plan_with({f"/optimisation/{name}": value for name, value in changes.items()})).optimisation


@pytest.mark.parametrize(
    ("scheduler", "rates"),
    [
        ("constant", [0.0, 1.0, 2.0, 2.0, 2.0, 2.0]),
        ("linear", [0.0, 1.0, 2.0, 1.5, 1.0, 0.5]),
        ("cosine", [0.0, 1.0, 2.0, 1.7071067811865475, 1.0, 0.2928932188134525]),
    ],
)
def test_rates_of_known_schedules(scheduler: str, rates: list[float]) -> None:
    plan = optimisation(max_steps=6, learning_rate=2.0, lr_scheduler=scheduler, warmup_ratio=0.3)  # two steps
    assert [learning_rate(plan, step) for step in range(1, 7)] == pytest.approx(rates, rel=1e-12)


def test_a_run_that_only_warms_up() -> None:
    plan = optimisation(max_steps=4, learning_rate=1.0, lr_scheduler="cosine", warmup_ratio=1.0)
    assert [learning_rate(plan, step) for step in range(1, 5)] == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.training
@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("ratio", [0.0, 0.03, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 20, 333])
def test_the_trainers_scheduler_gives_the_same_rates(scheduler: str, ratio: float, steps: int) -> None:
    import torch
    from transformers import get_scheduler

    from explicit_learning.training.arguments import SCHEDULERS

    plan = optimisation(max_steps=steps, learning_rate=3e-5, lr_scheduler=scheduler, warmup_ratio=ratio)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=plan.learning_rate)
    rising = warmup_steps(steps, ratio)
    real = get_scheduler(SCHEDULERS[scheduler], optimizer, num_warmup_steps=rising, num_training_steps=steps)
    for step in range(1, steps + 1):
        assert learning_rate(plan, step) == real.get_last_lr()[0]
        optimizer.step()
        real.step()
