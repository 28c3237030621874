"""When a run validates, and which intervals a plan may name."""

from __future__ import annotations

from typing import Any

import pytest

from explicit_learning.files.schema import validate
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.rules import broken_rules
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.plan.validation import is_validation_step, validation_steps
from tests.support.plans import PLAN, VALIDATION, plan_with


def faults(changes: dict[str, Any]) -> list[tuple[str | None, str]]:
    plan = plan_with({"/validation": VALIDATION, **changes})
    found = validate(plan, "plan", gate="plan", file="plan.json")
    found += broken_rules(plan, found, gate="plan", file="plan.json")
    return [(fault.pointer, fault.expected) for fault in found]


@pytest.mark.parametrize(("every", "steps"), [(20, [20, 40, 60]), (40, [40, 60]), (60, [60])])
def test_the_last_step_is_validated_too(every: int, steps: list[int]) -> None:
    plan = from_json(Plan, plan_with({"/validation": VALIDATION, "/validation/every_steps": every}))
    assert validation_steps(plan) == steps
    assert [step for step in range(1, 61) if is_validation_step(plan, step)] == steps


def test_a_plan_without_validation_validates_never() -> None:
    assert validation_steps(from_json(Plan, PLAN)) == []
    without = {name: value for name, value in PLAN.items() if name != "validation"}
    assert not validate(without, "plan", gate="plan", file="plan.json")
    assert validation_steps(from_json(Plan, without)) == []
    assert not broken_rules(without, [], gate="plan", file="plan.json")


def test_the_plan_of_these_tests_is_right() -> None:
    assert faults({}) == []


@pytest.mark.parametrize("name", ["save_interval", "logging_interval"])
def test_a_step_that_is_not_saved_or_logged_is_not_validated(name: str) -> None:
    [(pointer, expected)] = faults(
        {"/validation/every_steps": 20, f"/optimisation/{name}": 15, "/optimisation/max_steps": 60}
    )
    assert pointer == "/validation/every_steps"
    assert expected.startswith(f"a multiple of optimisation.{name}, 15")


def test_both_intervals_are_named_at_once() -> None:
    found = faults({"/optimisation/save_interval": 15, "/optimisation/logging_interval": 6})
    assert [pointer for pointer, _ in found] == ["/validation/every_steps"] * 2


def test_an_interval_beyond_the_last_step_is_refused() -> None:
    [(pointer, expected)] = faults({"/validation/every_steps": 80})
    assert (pointer, expected) == ("/validation/every_steps", "at most optimisation.max_steps, 60")


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_a_share_of_nothing_or_of_everything_is_refused(share: float) -> None:
    [(pointer, _)] = faults({"/validation/share": share})
    assert pointer == "/validation/share"


def test_a_misspelt_field_is_told_the_right_one() -> None:
    block = {("every_step" if name == "every_steps" else name): value for name, value in VALIDATION.items()}
    plan = plan_with({"/validation": block})
    [fault] = validate(plan, "plan", gate="plan", file="plan.json")
    assert (fault.pointer, fault.fix) == ("/validation/every_step", "write 'every_steps', if you meant that")
