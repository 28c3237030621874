"""The trainer's own state in a checkpoint, against the checkpoint's step, the plan and the run's log."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, found_text
from explicit_learning.files.tree import tree_json
from explicit_learning.files.typed_json import RESTORE
from explicit_learning.rundir import layout
from explicit_learning.rundir.metrics import is_logged, logged_rows
from explicit_learning.verify.contradictions import contradiction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker

__all__ = ["continued_log_faults", "read_trainer_state", "trainer_state_faults"]

CONTEXT = Context(gate="checkpoints", fix="restore the run directory from a copy: its records contradict each other")

_different = partial(contradiction, CONTEXT)


def read_trainer_state(tree: Tree, folder: str) -> dict[str, Any]:
    """Return a trainer's state; its log can hold NaN (the mean of no value), which transformers writes as Python does.

    Raises:
        Refusal: If it cannot be read, or has not the form of a trainer's state.
    """
    name = f"{folder}/{layout.TRAINER_STATE}"
    state = tree_json(tree, name, gate=CONTEXT.gate, fix=RESTORE, not_finite=True)
    at = CONTEXT.at(tree.place(name))
    if not isinstance(state, dict):
        raise at.refusal(found=found_text(state), expected="a JSON object")
    log = state.get("log_history")
    if not isinstance(log, list):
        raise at.refusal(pointer="/log_history", found=found_text(log), expected="a list of rows")
    for number, row in enumerate(log):
        if not isinstance(row, dict) or type(row.get("step")) is not int or not is_logged(row):
            expected = "a row with the loss of a step: the summary of a run is logged after its last checkpoint"
            raise at.refusal(pointer=f"/log_history/{number}", found=found_text(row), expected=expected)
    return state


def trainer_state_faults(
    tree: Tree, folder: str, step: int, plan: Plan, marker: CompletionMarker | None
) -> Iterator[Fault]:
    """Yield what a trainer's state says otherwise than its checkpoint's step, the plan and the marker's log.

    Args:
        tree: The run's files.
        folder: The checkpoint's folder.
        step: The checkpoint's step.
        plan: The plan.
        marker: The completion marker; ``None`` leaves out the log.

    Raises:
        Refusal: If the state cannot be read.
    """
    state = read_trainer_state(tree, folder)
    file = tree.place(f"{folder}/{layout.TRAINER_STATE}")
    yield from _different(file, "/global_step", state.get("global_step"), step, "the step of its checkpoint")
    planned = plan.optimisation.max_steps
    yield from _different(file, "/max_steps", state.get("max_steps"), planned, "the plan's max_steps")
    log = state["log_history"]
    if log and log[-1]["step"] == step:
        source = "the last one of log_history"
        yield from _different(file, "/epoch", state.get("epoch"), log[-1].get("epoch"), source)
        if plan.samples and "num_tokens" in log[-1]:
            seen = state.get("num_input_tokens_seen")
            yield from _different(file, "/num_input_tokens_seen", seen, log[-1]["num_tokens"], f"{source} (num_tokens)")
    if marker is not None:
        own = logged_rows(log)
        right = [row for row in marker.log_history if row["step"] <= step]
        yield from _rows(file, own, right)


def continued_log_faults(tree: Tree, folder: str, before: str) -> Iterator[Fault]:
    """Yield the rows of a checkpoint's log that are not those of the checkpoint before: a launch goes on with them.

    Args:
        tree: The run's files.
        folder: The checkpoint's folder.
        before: The folder of the checkpoint before.

    Raises:
        Refusal: If a state cannot be read.
    """
    own, earlier = (read_trainer_state(tree, each)["log_history"] for each in (folder, before))
    for number, (row, right) in enumerate(zip(own, earlier, strict=False)):
        found, expected = (json.dumps(each, sort_keys=True) for each in (row, right))
        if found != expected:
            yield CONTEXT.fault(
                file=tree.place(f"{folder}/{layout.TRAINER_STATE}"),
                pointer=f"/log_history/{number}",
                found=found,
                expected=f"{expected}, as in {before}/{layout.TRAINER_STATE}",
            )


def _rows(file: str, found: list[dict[str, Any]], right: list[dict[str, Any]]) -> Iterator[Fault]:
    """The rows are those of the marker's log, each with the same metrics."""
    source = f"as log_history in {layout.COMPLETION_MARKER} says"
    if len(found) != len(right):
        expected = f"{len(right)} rows, {source}"
        yield CONTEXT.fault(file=file, pointer="/log_history", found=f"{len(found)} rows", expected=expected)
    for number, (own, row) in enumerate(zip(found, right, strict=False)):
        for metric in sorted(own.keys() | row.keys()):
            pointer = f"/log_history/{number}/{metric.replace('~', '~0').replace('/', '~1')}"
            if own.keys() & row.keys() >= {metric}:
                yield from _different(file, pointer, own[metric], row[metric], source)
            else:
                value, expected = (found_text(each[metric]) if metric in each else "nothing" for each in (own, row))
                yield CONTEXT.fault(file=file, pointer=pointer, found=value, expected=f"{expected}, {source}")
