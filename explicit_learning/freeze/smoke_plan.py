"""A smoke plan from a main plan: the same run, a few steps long, under a name and a hash of its own.

A smoke run must show something about the plan that is run afterwards, so everything is kept but what makes it long: the
number of steps, the budget that goes with them, and a checkpoint interval that would interfere with the boundary. The
result depends on the main plan alone, so that the same command finds the same run again.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.atomic import write_json
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256
from explicit_learning.plan.rules import SMOKE_STOP_STEP, broken_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.inputs.sft_pass import SftPass

__all__ = ["SMOKE_SUFFIX", "move_paths", "smoke_plan", "write_smoke_plan"]

CONTEXT = Context(gate="smoke", exit_code=ExitCode.OUTPUT)
SMOKE_SUFFIX = "-smoke"
STEPS_AFTER_THE_STOP = 3
# Every field of a plan that holds a path.
PATHS = (
    ("model", "path"),
    ("initial_adapter", "path"),
    ("data", "dataset", "path"),
    ("data", "asset_root"),
    ("data", "dataset_manifest", "path"),
    ("data", "evaluation_manifest", "path"),
    ("prompt", "path"),
    ("validation", "slots", "path"),
)


def smoke_plan(
    main: dict[str, Any], *, file: Path, out: Path, count_steps: Callable[[dict[str, Any], int], SftPass]
) -> dict[str, Any]:
    """Return the smoke plan of a main plan.

    Args:
        main: The main plan's document, which is valid.
        file: Its file, where its paths start.
        out: Where the smoke plan goes, where its paths start.
        count_steps: Counts the first steps of an SFT pass, from the plan (whose paths are absolute then) and the number
            of steps; it needs the tokenizer, which this module may not import.

    Raises:
        Refusal: If the result breaks a rule, such as a pass that is too short.
    """
    plan = {name: copy.deepcopy(value) for name, value in main.items() if not name.startswith("$")}
    plan["run_id"] += SMOKE_SUFFIX
    plan["run_mode"] = "smoke"
    move_paths(plan, lambda path: str((file.resolve().parent / path).resolve()))
    optimisation, objective = plan["optimisation"], plan["objective"]
    cycle = 1
    if objective is not None:
        if SMOKE_STOP_STEP % objective["num_iterations"]:
            objective["num_iterations"] = SMOKE_STOP_STEP  # the stop must end a cycle of several updates, too
        cycle = objective["num_iterations"]
    steps = SMOKE_STOP_STEP + max(STEPS_AFTER_THE_STOP, cycle)
    optimisation["save_interval"] = SMOKE_STOP_STEP
    if plan.get("validation"):
        plan["validation"]["every_steps"] = SMOKE_STOP_STEP  # where it saves; the last step is validated, too
        if SMOKE_STOP_STEP % optimisation["logging_interval"]:
            optimisation["logging_interval"] = 1
    if ARMS[plan["arm"]].is_sft:
        counted = count_steps(plan, min(steps, optimisation["max_steps"]))
        optimisation["max_steps"] = counted.steps
        plan["budget"] |= {"max_sft_loss_tokens": counted.loss_tokens, "planned_sft_loss_tokens": counted.loss_tokens}
    else:
        optimisation["max_steps"] = steps
        plan["budget"]["max_completion_tokens_per_run"] = Geometry.of_document(plan).token_bound(steps)
    move_paths(plan, lambda path: Path(os.path.relpath(path, out.resolve().parent)).as_posix())
    plan[FROZEN] = frozen_config_sha256(plan)
    faults = validate(plan, "plan", gate=CONTEXT.gate, file=str(file))
    if faults := faults + broken_rules(plan, faults, gate=CONTEXT.gate, file=str(file)):
        raise Refusal(faults)
    return plan


def write_smoke_plan(plan: dict[str, Any], out: Path) -> None:
    """Write a smoke plan, unless it is there already.

    Raises:
        Refusal: If another plan is there (exit code 73), or it cannot be written.
    """
    if out.exists():
        held = load_json(out, gate=CONTEXT.gate)
        found = held.get(FROZEN) if isinstance(held, dict) else None
        if found != plan[FROZEN]:
            raise CONTEXT.refusal(
                file=out,
                pointer=f"/{FROZEN}",
                found=found_text(found),
                expected=f"{plan[FROZEN]}, the smoke plan of this plan",
                fix="choose another folder (--out), or remove the old smoke run and its plan",
            )
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, plan)
    except OSError as error:
        raise Refusal(write_fault(error, out)) from None


def move_paths(plan: dict[str, Any], place: Callable[[str], str]) -> None:
    """Rewrite every path of a plan, in place."""
    for *groups, last in PATHS:
        holder: Any = plan
        for group in groups:
            holder = holder and holder.get(group)
        if holder:
            holder[last] = place(holder[last])
