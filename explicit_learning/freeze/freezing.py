"""Freezing: everything a run depends on is measured, written down and hashed.

A draft holds what a person wants; the plan holds what will happen. Between the two, each default is written out, each
file is hashed, and each rule is checked, so that whoever runs the plan later needs nothing but the plan.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
from explicit_learning.data.slots import slot_manifest_sha256
from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.atomic import write_json
from explicit_learning.files.os_errors import missing_file, write_fault
from explicit_learning.files.schema import load_schema, validate
from explicit_learning.files.strict_json import load_json
from explicit_learning.files.typed_json import from_json
from explicit_learning.freeze.draft import fill_defaults
from explicit_learning.freeze.draft_data import DraftData, drafted_data
from explicit_learning.freeze.validation import measured_validation, with_present_slots
from explicit_learning.inputs.base_model import position_faults
from explicit_learning.inputs.code import code_identity
from explicit_learning.inputs.data import rows_faults
from explicit_learning.inputs.held_out import HeldOutPart
from explicit_learning.inputs.named import Named, read_inputs
from explicit_learning.inputs.outputs import cache_faults, inputs_of_draft, output_faults
from explicit_learning.inputs.visits import PlannedVisits
from explicit_learning.lock.installed import lock_of_new_plan
from explicit_learning.lock.parse import lock_sha256
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256
from explicit_learning.plan.rules import broken_rules, warnings
from explicit_learning.plan.typed_plan import Generation, Lora, Objective
from explicit_learning.plan.vllm_rules import lock_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.arms import Arm
    from explicit_learning.data.dataset_manifest import RowsFile
    from explicit_learning.errors import Fault
    from explicit_learning.inputs.named import Inputs
    from explicit_learning.inputs.sft_pass import SftPass
    from explicit_learning.rundir.launches import CodeIdentity

__all__ = ["draft_faults", "freeze", "read_draft"]

CONTEXT = Context(gate="draft")
OUTPUT = Context(gate="output", exit_code=ExitCode.OUTPUT)


def read_draft(path: Path) -> dict[str, Any]:
    """Read a draft.

    Raises:
        Refusal: If it cannot be read, or is not a strict JSON object.
    """
    context = CONTEXT.at(path)
    if not os.path.exists(path):  # noqa: PTH110 - unlike Path's, it takes too long a name for a missing file
        fix = "check the path; drafts to start from are in plans/"
        found, fix = missing_file(path, fix=fix)
        raise context.refusal(found=found, expected="a draft", fix=fix, exit_code=ExitCode.USAGE)
    draft = load_json(path, gate=context.gate)
    if not isinstance(draft, dict):
        fix = "start from a draft in plans/"
        raise context.refusal(found=found_text(draft), expected="a JSON object", fix=fix)
    return draft


def freeze(
    draft: dict[str, Any],
    *,
    file: Path,
    out: Path,
    count_sft: Callable[[Path, str, Path, dict[str, Any]], SftPass],
) -> tuple[dict[str, Any], list[str]]:
    """Freeze a draft into a plan file.

    Args:
        draft: The draft as read.
        file: The draft's file: its paths start at that folder, and faults name it.
        out: Where the plan is written; its paths start there.
        count_sft: Counts the pass of an SFT arm, from the model's folder, the system prompt, the rows' file and the
            filled draft. It needs the tokenizer, and with it libraries that this module may not import.

    Returns:
        The plan, and warnings about what is legal but probably not meant.

    Raises:
        Refusal: With everything that is wrong; nothing is written then.
    """
    arm, filled, inputs, code = _sound_draft(draft, file, out)
    with drafted_data(draft["data"], arm, base=file.resolve().parent, out=out, file=str(file)) as data:
        plan, noticed = _frozen_plan(filled, arm, inputs, data, code, file=file, out=out, count_sft=count_sft)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, plan)
    except OSError as error:
        raise Refusal(write_fault(error, out)) from None
    return plan, [*warnings(plan), *noticed]


def draft_faults(
    draft: dict[str, Any],
    *,
    file: Path,
    out: Path,
    count_sft: Callable[[Path, str, Path, dict[str, Any]], SftPass],
) -> list[Fault]:
    """Return why a draft that names a dataset would not become a plan; nothing is written.

    The arguments are those of `freeze`. An RL draft may leave out its initial adapter, which may
    not exist yet.
    """
    try:
        arm, filled, inputs, code = _sound_draft(draft, file, out)
        with drafted_data(draft["data"], arm, base=file.resolve().parent, out=out, file=str(file)) as data:
            _frozen_plan(filled, arm, inputs, data, code, file=file, out=out, count_sft=count_sft)
    except Refusal as refusal:
        return [fault for fault in refusal.faults if fault.pointer != "/initial_adapter"]
    return []


def _sound_draft(draft: dict[str, Any], file: Path, out: Path) -> tuple[Arm, dict[str, Any], Inputs, CodeIdentity]:
    """Return a draft's arm, the draft with every default, what it names beside its data, and the code that freezes it.

    Raises:
        Refusal: With everything that is wrong with these and with the place of the plan.
    """
    places = inputs_of_draft(draft, file)
    if overlap := cache_faults(places):
        raise Refusal(overlap)
    faults = validate(draft, "draft", gate=CONTEXT.gate, file=str(file))
    refused = {(fault.pointer or "/").split("/")[1] for fault in faults}
    if "arm" in refused:
        raise Refusal(faults)
    sound = draft.keys() - refused
    if faults:
        # What the draft names is read even when other fields are wrong, so that one round shows everything.
        raise Refusal([*faults, *_read_inputs(draft, file, sound).faults])
    filled, faults = fill_defaults(draft)
    faults = [replace(fault, file=str(file)) for fault in faults]
    arm = ARMS.get(filled["arm"])
    inputs = _read_inputs(draft, file, sound, lora=None if faults else from_json(Lora, filled["lora"]))
    if inputs.model is not None and not faults:
        faults += position_faults(inputs.model, filled, file=str(file))
    faults += inputs.faults
    code = None
    try:
        code = code_identity()
    except Refusal as refusal:
        faults += refusal.faults
    faults += _output_faults(out, places)
    if faults or arm is None or inputs.model is None or inputs.prompt is None or code is None:
        raise Refusal(faults)
    return arm, filled, inputs, code


def _frozen_plan(
    filled: dict[str, Any],
    arm: Arm,
    inputs: Inputs,
    data: DraftData,
    code: CodeIdentity,
    *,
    file: Path,
    out: Path,
    count_sft: Callable[[Path, str, Path, dict[str, Any]], SftPass],
) -> tuple[dict[str, Any], list[str]]:
    """Return the plan of a filled draft, and warnings about its rows (see `freeze`).

    Raises:
        Refusal: With everything that is wrong with the rows and with the plan.
    """
    if inputs.model is None or inputs.prompt is None:
        raise AssertionError("a draft whose inputs were refused is not frozen")
    plan = _measured(filled, arm, inputs, data, out, file)
    # What is wrong with the rows is reported together with what is wrong with the plan.
    unfit, noticed = rows_faults(
        replace(inputs, data=data.checked),
        arm=arm,
        generation=from_json(Generation, plan["generation"]),
        objective=from_json(Objective, plan["objective"]) if plan["objective"] else None,
        visits=None if arm.is_sft else PlannedVisits.of_document(plan),
        validation=HeldOutPart.of_document(plan),
        asset_root=data.manifest.asset_root,
        file=str(file),
    )
    left_out: list[str] = []
    if arm.is_sft:
        present = with_present_slots(plan, data)
        counted = count_sft(inputs.model.folder, inputs.prompt.text, data.path(data.training), present)
        rows_per_step = Geometry.of_document(plan).rows_per_cycle
        left_out = counted.warnings(rows_per_step=rows_per_step, limit=plan["budget"]["max_sft_loss_tokens"])
        if too_short := _fill_sft(plan, counted, file, rows_per_step=rows_per_step):
            raise Refusal([*too_short, *unfit])
    plan |= {"code_commit": code.commit, "code_dirty": code.dirty}
    # A plan for GPUs may be frozen anywhere; one for CPUs runs in the environment it is frozen in, whichever that is.
    lock = lock_of_new_plan(plan["hardware"]["accelerator"])
    plan["environment_lock_sha256"] = lock_sha256(lock)
    plan = _ordered(plan, load_schema("plan"))
    plan[FROZEN] = frozen_config_sha256(plan)
    faults = validate(plan, "plan", gate=CONTEXT.gate, file=str(file))
    faults += broken_rules(plan, faults, gate=CONTEXT.gate, file=str(file))
    faults += lock_faults(plan, lock, file=str(file))
    if faults or unfit:
        raise Refusal([*faults, *unfit])
    return plan, [*noticed, *left_out]


def _read_inputs(draft: dict[str, Any], file: Path, sound: set[str], *, lora: Lora | None = None) -> Inputs:
    """Read what a draft names in its sound groups."""
    base = file.resolve().parent

    def named(group: str) -> Named | None:
        value = draft.get(group) if group in sound else None
        return value and Named(path=(base / value["path"]).resolve())

    return read_inputs(
        model=named("model"),
        adapter=named("initial_adapter"),
        prompt=named("prompt"),
        lora=lora,
        file=str(file),
    )


def _output_faults(out: Path, inputs: list[tuple[str, Path]]) -> list[Fault]:
    """Return why no plan can be written to a path: renaming one there would replace an input, or a device."""
    if out.is_file() or not out.exists():
        return output_faults(out, inputs, option="-o")
    found = "a folder" if out.is_dir() else "a device, a pipe or a socket"
    fix = "name another file with -o, such as my/plan.json"
    return [OUTPUT.fault(file=out, found=found, expected="a plan file, or nothing", fix=fix)]


def _ordered(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return an object with its fields in the schema's order, as a person reads them."""
    fields = schema["properties"]
    return {
        name: _ordered(value[name], field) if isinstance(value[name], dict) and "properties" in field else value[name]
        for name, field in fields.items()
        if name in value
    }


def _measured(  # noqa: PLR0917 - what a plan is made of
    filled: dict[str, Any], arm: Arm, inputs: Inputs, data: DraftData, out: Path, file: Path
) -> dict[str, Any]:
    """Return the filled draft with paths relative to the plan and everything measured except the SFT pass.

    Raises:
        Refusal: With exit code 74 if a file cannot be read; if validation has no slots to hold out.
    """
    model, prompt = inputs.model, inputs.prompt
    if model is None or prompt is None:
        raise AssertionError("a draft whose inputs were refused is not measured")

    def relative(path: Path) -> str:
        return Path(os.path.relpath(path, out.resolve().parent)).as_posix()

    def rows(entry: RowsFile) -> dict[str, str]:
        return {"path": relative(data.at_home(data.path(entry))), "sha256": entry.sha256}

    plan = dict(filled)
    plan["model"] |= {"path": relative(model.folder), "snapshot_sha256": model.snapshot_sha256()}
    if inputs.adapter:
        plan["initial_adapter"] = {"path": relative(inputs.adapter.folder), "sha256": inputs.adapter.sha256()}
    plan["prompt"] = {"path": relative(prompt.file), "sha256": prompt.sha256()}
    plan["generation"] |= {"terminal_token_ids": list(model.terminal), "answer_regex": ANSWER_SCHEMA_REGEX}
    plan["data"] = {
        "dataset": rows(data.training),
        "asset_root": relative(data.at_home(data.manifest.asset_root.resolve())),
        "dataset_manifest": {"path": relative(data.at_home(data.manifest.path)), "sha256": data.manifest.sha256},
        "slot_manifest_sha256": None if arm.is_sft else slot_manifest_sha256(data.checked.slots),
        "evaluation_manifest": rows(data.evaluation),
    }
    plan["budget"]["planned_sft_loss_tokens"] = None
    if plan["validation"] is not None:
        plan["validation"] = measured_validation(plan["validation"], data, rows=rows, file=file)
    return plan


def _fill_sft(plan: dict[str, Any], counted: SftPass, file: Path, *, rows_per_step: int) -> list[Fault]:
    """Write the pass that was counted into the plan; return a fault if there is none, or not of the steps asked for."""
    optimisation, budget = plan["optimisation"], plan["budget"]
    rows, context = counted.records + counted.left_out, CONTEXT.at(file)
    if counted.steps < 1 and rows < rows_per_step:
        return [
            context.fault(
                pointer="/optimisation/per_device_batch_size",
                found=f"{rows_per_step} rows in a step",
                expected=f"at most {rows}, as many as the arm {plan['arm']} has",
                fix="lower the batch, the accumulation steps or the ranks, or add rows",
            )
        ]
    if counted.steps < 1:
        return [
            context.fault(
                pointer="/budget/max_sft_loss_tokens",
                found=f"{budget['max_sft_loss_tokens']} loss tokens",
                expected=f"at least those of one step, of {rows_per_step} rows",
                fix="raise it, or lower optimisation.per_device_batch_size",
            )
        ]
    asked = optimisation.get("max_steps", counted.steps)
    if asked != counted.steps:
        used = f"{counted.records} rows, {counted.loss_tokens} loss tokens"
        longer = "raise budget.max_sft_loss_tokens, or add rows"
        shorter = "lower budget.max_sft_loss_tokens: an SFT run is one pass over its rows"
        return [
            context.fault(
                pointer="/optimisation/max_steps",
                found=f"{asked} steps planned, {counted.steps} possible",
                expected=f"one pass over the rows within the limit: {counted.steps} steps ({used})",
                fix=f"leave max_steps out, or {longer if asked > counted.steps else shorter}",
            )
        ]
    optimisation["max_steps"] = counted.steps
    budget["planned_sft_loss_tokens"] = counted.loss_tokens
    if budget["max_sft_loss_tokens"] is None:
        budget["max_sft_loss_tokens"] = counted.loss_tokens
    return []
