"""What a marker says about validations is computed again from its log, its plan and its checkpoints."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.completion_marker import CompletionMarker, Validated, ValidationCompute
from explicit_learning.rundir.validation import BestCheckpoint
from explicit_learning.verify.log_rows import metrics_of_row
from explicit_learning.verify.validation import validation_faults
from tests.support.plans import PLAN, VALIDATION, plan_with

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLANNED = from_json(Plan, plan_with({"/validation": VALIDATION}))
CHECKPOINTS = ("checkpoint-40", "checkpoint-60")
EXAMPLE: CompletionMarker = from_json(
    CompletionMarker, json.loads((SCHEMAS / "examples" / "completion-marker.json").read_text())
)


def row(full: int, missing: int, *, malformed: int = 0, tokens: int = 80) -> dict[str, Any]:
    """Return what a validation logs that had so many right answers to five FULL and three MISSING questions."""
    return {
        "validation/full/questions": 5,
        "validation/full/accuracy": full / 5,
        "validation/missing/questions": 3,
        "validation/missing/abstention": missing / 3,
        "validation/questions": 8,
        "validation/right_ratio": (full + missing) / 8,
        "validation/malformed_ratio": malformed / 8,
        "validation/tokens": tokens,
    }


FOUND = {20: row(2, 1), 40: row(4, 2, malformed=1), 60: row(3, 3, tokens=72)}


@pytest.fixture
def tree(tmp_path: Path) -> FolderTree:
    return FolderTree(tmp_path)


def marker(**changes: Any) -> CompletionMarker:
    log = tuple({"step": step, "loss": 0.5} | FOUND.get(step, {}) for step in range(1, 61))
    best = BestCheckpoint(checkpoint="checkpoint-40", step=40, right_ratio=0.75)
    compute = dataclasses.replace(
        EXAMPLE.compute, validation=ValidationCompute(forwards=30, sampled_tokens=232, device_seconds=2.0)
    )
    validation = Validated(groups=2, questions=8, best=best)
    values = {"log_history": log, "validation": validation, "compute": compute} | changes
    return dataclasses.replace(EXAMPLE, **values)


def pointers(
    tree: FolderTree, made: CompletionMarker, plan: Plan = PLANNED, kept: Any = CHECKPOINTS
) -> list[str | None]:
    return [fault.pointer for fault in validation_faults(tree, plan, made, kept)]


def changed(step: int, **values: Any) -> CompletionMarker:
    """Return the marker with metrics of a validated step changed; ``None`` removes one."""
    rows = [dict(each) for each in marker().log_history]
    for name, value in values.items():
        metric = f"validation/{name.replace('__', '/')}"
        rows[step - 1] = {key: held for key, held in rows[step - 1].items() if key != metric}
        if value is not None:
            rows[step - 1][metric] = value
    return marker(log_history=tuple(rows))


def test_an_honest_marker_is_accepted(tree: FolderTree) -> None:
    assert pointers(tree, marker()) == []


def test_the_earlier_of_two_equal_checkpoints_is_the_best(tree: FolderTree) -> None:
    # 40 and 60 both have six right answers of eight.
    later = BestCheckpoint(checkpoint="checkpoint-60", step=60, right_ratio=0.75)
    assert pointers(tree, marker(validation=Validated(groups=2, questions=8, best=later))) == ["/validation"]


@pytest.mark.parametrize(
    "change",
    [
        lambda: {"validation": None},
        lambda: {"validation": Validated(groups=3, questions=8, best=marker().validation.best)},  # type: ignore[union-attr] # it has one
        lambda: {"validation": Validated(groups=2, questions=9, best=marker().validation.best)},  # type: ignore[union-attr] # it has one
    ],
)
def test_another_block_is_found(tree: FolderTree, change: Callable[[], dict[str, Any]]) -> None:
    assert pointers(tree, marker(**change())) == ["/validation"]


def test_a_best_checkpoint_that_is_gone_is_found(tree: FolderTree) -> None:
    [fault] = validation_faults(tree, PLANNED, marker(), ["checkpoint-60"])
    assert fault.file == tree.place("checkpoint-40/complete.json")


@pytest.mark.parametrize("step", [20, 60])
def test_a_validation_that_is_missing_is_found(tree: FolderTree, step: int) -> None:
    rows = [each if each["step"] != step else {"step": step, "loss": 0.5} for each in marker().log_history]
    assert "/log_history" in pointers(tree, marker(log_history=tuple(rows)))


def test_a_validation_at_another_step_is_found(tree: FolderTree) -> None:
    rows = [each | row(0, 0) if each["step"] == 30 else each for each in marker().log_history]
    assert "/log_history" in pointers(tree, marker(log_history=tuple(rows)))


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({"right_ratio": 0.5}, "right_ratio"),
        ({"full__accuracy": 0.5}, "full~1accuracy"),
        ({"full__accuracy": None}, "full~1accuracy"),
        ({"full__accuracy": 1.2}, "full~1accuracy"),
        ({"full__questions": 4.5}, "full~1accuracy"),
        ({"missing__questions": None, "missing__abstention": None}, "questions"),
        ({"questions": 9}, "questions"),
        ({"malformed_ratio": 0.3}, "malformed_ratio"),
        ({"malformed_ratio": 1.0}, "malformed_ratio"),
        ({"tokens": 7}, "tokens"),
        ({"tokens": 8 * 12 + 1}, "tokens"),
        ({"tokens": 50.5}, "tokens"),
    ],
)
def test_a_row_that_no_answers_give_is_found(tree: FolderTree, values: dict[str, Any], pointer: str) -> None:
    assert f"/log_history/19/validation~1{pointer}" in pointers(tree, changed(20, **values))


def test_tokens_that_do_not_add_up_are_found(tree: FolderTree) -> None:
    assert pointers(tree, changed(20, tokens=81)) == ["/compute/validation/sampled_tokens"]


def test_a_cost_that_is_left_out_is_found(tree: FolderTree) -> None:
    assert pointers(tree, marker(compute=dataclasses.replace(EXAMPLE.compute, validation=None))) == [
        "/compute/validation"
    ]


def test_a_run_without_validation_has_none_of_it(tree: FolderTree) -> None:
    plan = from_json(Plan, PLAN)
    log = tuple({"step": step, "loss": 0.5} for step in range(1, 61))
    compute = dataclasses.replace(EXAMPLE.compute, validation=None)
    bare = marker(log_history=log, validation=None, compute=compute)
    assert pointers(tree, bare, plan) == []
    assert pointers(tree, marker(log_history=log), plan) == ["/validation", "/compute/validation"]


def test_only_rows_of_validated_steps_have_its_metrics() -> None:
    of_all = frozenset(FOUND[20])
    wanted, allowed = metrics_of_row(PLANNED, 19, 20)
    assert of_all <= wanted | allowed
    assert {
        "validation/questions",
        "validation/right_ratio",
        "validation/malformed_ratio",
        "validation/tokens",
    } <= wanted
    wanted, allowed = metrics_of_row(PLANNED, 20, 21)
    assert not of_all & (wanted | allowed)
