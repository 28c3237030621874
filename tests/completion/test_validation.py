"""A validated run is complete only with every planned validation, and with its best checkpoint."""

from __future__ import annotations

from typing import Any

from explicit_learning.completion.validation import broken_validation_rules, validated
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.completion_marker import Validated
from explicit_learning.rundir.validation import RIGHT, BestCheckpoint
from tests.support.plans import PLAN, VALIDATION, plan_with

PLANNED = from_json(Plan, plan_with({"/validation": VALIDATION}))
BEST = "checkpoint-40"


def log(ratios: dict[int, float]) -> list[dict[str, Any]]:
    return [{"step": step} | ({RIGHT: ratios[step]} if step in ratios else {}) for step in range(1, 61)]


WHOLE = log({20: 0.25, 40: 0.5, 60: 0.5})


def test_a_whole_run_breaks_no_rule() -> None:
    assert list(broken_validation_rules(PLANNED, WHOLE, [BEST, "checkpoint-60"])) == []
    best = BestCheckpoint(checkpoint=BEST, step=40, right_ratio=0.5)
    assert validated(PLANNED, WHOLE) == Validated(groups=2, questions=8, best=best)


def test_a_missing_validation_and_a_missing_checkpoint_are_both_told() -> None:
    faults = list(broken_validation_rules(PLANNED, log({20: 0.25, 40: 0.5}), ["checkpoint-60"]))
    assert [(fault.pointer, fault.found) for fault in faults] == [
        ("/log_history", "validations after steps [20, 40]"),
        (None, "no such file"),
    ]
    assert faults[1].file == f"{BEST}/complete.json"


def test_a_run_without_validation_needs_neither() -> None:
    plan = from_json(Plan, PLAN)
    assert list(broken_validation_rules(plan, log({}), [])) == []
    assert validated(plan, log({})) is None
    [fault] = broken_validation_rules(plan, log({30: 0.5}), ["checkpoint-30"])
    assert fault.pointer == "/log_history"
