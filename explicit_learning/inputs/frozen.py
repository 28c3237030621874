"""What a frozen plan names, read and compared with what was frozen: by the gates of a run, and before an evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, Refusal
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.typed_json import to_json
from explicit_learning.inputs.data import check_frozen_data, is_as_frozen, rows_faults
from explicit_learning.inputs.held_out import HeldOutPart
from explicit_learning.inputs.named import Inputs, Named, read_inputs
from explicit_learning.inputs.outputs import cache_faults, inputs_of_plan
from explicit_learning.inputs.sft_pass import PlannedPass
from explicit_learning.inputs.visits import PlannedVisits
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.reading import FROZEN, read_plan
from explicit_learning.plan.typed_plan import (
    Data,
    Generation,
    InitialAdapter,
    Lora,
    Model,
    Objective,
    Prompt,
    ResolvedPaths,
    Validation,
)

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.plan.reading import PlanDocument

__all__ = ["frozen_paths", "read_frozen_inputs", "resolved_paths"]

CONTEXT = Context(gate="plan")
# What `read_frozen_inputs` reads of a plan, the pass of an SFT arm aside. Visits are a question before a run alone.
INPUT_GROUPS = ("arm", "model", "initial_adapter", "prompt", "lora", "generation", "data", "objective", "validation")


def read_frozen_inputs(document: PlanDocument) -> Inputs:
    """Read what a plan names and compare it with what was frozen, as far as the plan itself is in order.

    The bytes of models and images wait until the plan is in order: a mistake in it is answered at once. Rows are read
    then only if they are not the frozen ones. `Inputs.not_checked` names what was left out.
    """
    if overlap := cache_faults(inputs_of_plan(document)):
        return Inputs(
            model=None, adapter=None, prompt=None, faults=tuple(overlap), not_checked=("anything that the plan names",)
        )
    whole = not document.faults
    base, file = document.path.resolve().parent, str(document.path)
    model, prompt = document.group("model", Model), document.group("prompt", Prompt)
    adapter = document.group("initial_adapter", InitialAdapter)
    generation = document.group("generation", Generation)
    inputs = read_inputs(
        model=None if model is None else Named(path=base / model.path, sha256=model.snapshot_sha256 if whole else None),
        adapter=None if adapter is None else Named(path=base / adapter.path, sha256=adapter.sha256),
        prompt=None if prompt is None else Named(path=base / prompt.path, sha256=prompt.sha256),
        lora=document.group("lora", Lora),
        file=file,
    )
    faults = list(inputs.faults)
    if inputs.model and generation and generation.terminal_token_ids != inputs.model.terminal:
        faults.append(
            CONTEXT.fault(
                file=file,
                pointer="/generation/terminal_token_ids",
                found=str(list(generation.terminal_token_ids)),
                expected=f"{list(inputs.model.terminal)}, the model's end-of-sequence tokens",
                fix="freeze the draft again",
            )
        )
    data, validation = document.group("data", Data), document.group("validation", Validation)
    if data is not None and (whole or not is_as_frozen(data, base=base)):
        checked, found = check_frozen_data(
            data, arm=document.arm, base=base, images=whole, file=file, validation=validation
        )
        inputs, faults = replace(inputs, data=checked), faults + found
        try:
            unfit, warnings = rows_faults(
                inputs,
                arm=document.arm,
                # Rows are measured against the plan's limits only if they are the rows that were frozen.
                generation=None if found else generation,
                objective=document.group("objective", Objective),
                planned=None if found else _planned_pass(document),
                visits=None if found else _planned_visits(document),
                validation=None if found else _held_out_part(document),
                asset_root=base / data.asset_root,
                file=file,
            )
            faults += unfit
            inputs = replace(inputs, warnings=tuple(warnings))
        except Refusal as refusal:
            faults += refusal.faults
    left_out = []
    if model and not whole:
        left_out.append(f"the bytes of the model, {base / model.path}")
    if data and not whole:
        left_out.append(f"the images, {base / data.asset_root}")
    return replace(inputs, faults=tuple(faults), not_checked=tuple(left_out))


def _planned_pass(document: PlanDocument) -> PlannedPass | None:
    """Return the pass of an SFT plan that is in order."""
    plan = document.plan
    if plan is None or plan.samples:
        return None
    return PlannedPass(
        data_seed=plan.data_seed,
        rows_per_step=Geometry.of(plan).rows_per_cycle,
        max_loss_tokens=plan.budget.max_sft_loss_tokens,
        steps=plan.optimisation.max_steps,
        loss_tokens=plan.budget.planned_sft_loss_tokens,
    )


def _planned_visits(document: PlanDocument) -> PlannedVisits | None:
    """Return the slot visits of an RL plan that is in order."""
    plan = document.plan
    return PlannedVisits.of_document(document.raw) if plan is not None and plan.samples else None


def _held_out_part(document: PlanDocument) -> HeldOutPart | None:
    """Return what a plan that is in order holds out for validation."""
    plan = document.plan
    return None if plan is None else HeldOutPart.of_document(document.raw, plan.validation)


def resolved_paths(document: PlanDocument) -> ResolvedPaths:
    """Return the absolute paths of what a valid plan names.

    Raises:
        AssertionError: If the plan is not valid.
    """
    plan = document.plan
    if plan is None:
        raise AssertionError("a plan that was refused has no paths")
    base = document.path.resolve().parent

    def resolved(path: str) -> str:
        return str((base / path).resolve())

    return ResolvedPaths(
        model=resolved(plan.model.path),
        initial_adapter=resolved(plan.initial_adapter.path) if plan.initial_adapter else None,
        dataset=resolved(plan.data.dataset.path),
        asset_root=resolved(plan.data.asset_root),
        evaluation=resolved(plan.data.evaluation_manifest.path),
        prompt=resolved(plan.prompt.path),
        validation=resolved(plan.validation.slots.path) if plan.validation else None,
    )


def frozen_paths(path: Path, *, expected: str, known: set[str] | None = None) -> ResolvedPaths:
    """Check what a plan names, and return where it lies.

    Args:
        path: The plan.
        expected: The frozen hash that it must have.
        known: Inputs that were checked before and are whole; they are not read again. What is read now is added.

    Raises:
        Refusal: With everything that is wrong with the plan, the model, the adapter, the prompt or the data.
    """
    document, known = read_plan(path), set() if known is None else known
    base = str(document.path.resolve().parent)
    read = {"base": base, "pass": to_json(_planned_pass(document))}
    inputs = sha256_json(read | {name: document.raw.get(name) for name in INPUT_GROUPS})
    faults = list(document.faults)
    if faults or inputs not in known:
        faults += read_frozen_inputs(document).faults
    if document.plan is not None and (found := document.plan.frozen_config_sha256) != expected:
        fix = "name the plan that the run was started with"
        faults.append(CONTEXT.fault(file=path, pointer=f"/{FROZEN}", found=found, expected=expected, fix=fix))
    if faults:
        raise Refusal(faults)
    known.add(inputs)
    return resolved_paths(document)
