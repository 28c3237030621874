"""All gates at once: everything that would stop a run, found before anything is trained.

A gate that needs a part of the plan which is itself wrong is skipped, and beside a plan that is refused no bytes of
models and images are read. Every other gate is run, so that one round of corrections is enough. The order is: the plan,
the program around it, what the plan names, the machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.errors import Refusal
from explicit_learning.gates.activations import FLOAT32
from explicit_learning.gates.compiler import check_compiler
from explicit_learning.gates.disk import check_disk, estimate_run_bytes
from explicit_learning.gates.environment import check_environment
from explicit_learning.gates.hardware import check_hardware
from explicit_learning.gates.image import check_image
from explicit_learning.gates.kernels import check_visible_kernels
from explicit_learning.gates.machine import measure_platform
from explicit_learning.gates.memory import check_memory, rank_memory
from explicit_learning.gates.nvml import NvmlUnavailable, read_inventory
from explicit_learning.gates.output import check_output
from explicit_learning.gates.resume import LIBRARIES, check_resume
from explicit_learning.gates.row_sizes import row_sizes
from explicit_learning.gates.shm import check_shm, shm_need
from explicit_learning.gates.signing import check_signing_key
from explicit_learning.gates.temporary import check_adapter_versions, check_temporary_folder
from explicit_learning.gates.trackers import check_trackers
from explicit_learning.inputs.base_model import position_faults
from explicit_learning.inputs.code import code_identity, code_warnings
from explicit_learning.inputs.frozen import read_frozen_inputs, resolved_paths
from explicit_learning.inputs.lora_targets import adapter_values, resolve_targets
from explicit_learning.inputs.outputs import inputs_of_plan, output_faults
from explicit_learning.lock.shipped import find_lock
from explicit_learning.model_files.headers import lora_parameter_bound, processor_bytes
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.reading import FROZEN
from explicit_learning.plan.typed_plan import Generation, Hardware, Lora, Model, Objective, Optimisation
from explicit_learning.plan.vllm_rules import lock_faults
from explicit_learning.rundir.checkpoint_files import has_reference
from explicit_learning.rundir.layout import COMPLETION_MARKER
from explicit_learning.rundir.output_comparison import compared_run

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.gates.disk import DiskNeed
    from explicit_learning.gates.memory import RankMemory
    from explicit_learning.gates.row_sizes import RowSizes
    from explicit_learning.inputs.named import Inputs
    from explicit_learning.plan.reading import PlanDocument
    from explicit_learning.plan.typed_plan import ResolvedPaths
    from explicit_learning.rundir.launches import CodeIdentity, Platform

__all__ = ["Checked", "check_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the gates found.

    Attributes:
        document: The plan.
        faults: Everything that would stop the run.
        known_code: Identity of the code that runs; ``None`` where a fault explains why it is not known.
        known_platform: What computes here; ``None`` where the plan does not say what it asks for.
        memory: What a rank takes, and the memory that there is; ``None`` where it cannot be estimated.
        warnings: What would not stop the run, but may not be meant.
        not_checked: What was left out, because something else is wrong.
    """

    document: PlanDocument
    faults: tuple[Fault, ...]
    known_code: CodeIdentity | None
    known_platform: Platform | None
    memory: RankMemory | None = None
    warnings: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()

    @property
    def code(self) -> CodeIdentity:
        """Identity of the code that runs, when nothing is wrong."""
        if self.known_code is None:
            raise AssertionError("code of an unknown commit starts no run")
        return self.known_code

    @property
    def platform(self) -> Platform:
        """What computes here, when nothing is wrong."""
        if self.known_platform is None:
            raise AssertionError("a plan without hardware starts no run")
        return self.known_platform

    @property
    def paths(self) -> ResolvedPaths:
        """Absolute paths of what the plan names."""
        return resolved_paths(self.document)


def check_plan(
    document: PlanDocument, *, out: Path | None, nodes: int = 1, node: int = 0, accept_changes: bool = False
) -> Checked:
    """Run every gate on a plan.

    Args:
        document: The plan as `read_plan` read it.
        out: The run folder; ``None`` leaves the gates on output and disk out.
        nodes: Machines that share the ranks; this one is checked for its share.
        node: This machine's number among them.
        accept_changes: Whether a resumed run may go on where other numbers are computed.
    """
    faults = [*document.faults]
    try:
        faults += _environment_faults(document)
    except Refusal as refusal:
        faults += refusal.faults
    code: CodeIdentity | None = None
    try:
        code = code_identity()
    except Refusal as refusal:
        faults += refusal.faults
    faults += [*check_trackers(os.environ), *check_signing_key(os.environ), *check_temporary_folder()]
    inputs = read_frozen_inputs(document)
    faults += inputs.faults
    if inputs.model is not None and document.is_sound("generation") and document.is_sound("vllm"):
        faults += position_faults(inputs.model, document.raw, file=str(document.path))
    machine = _examined_machine(document, inputs, nodes)
    faults += machine.faults
    accepted: list[str] = []
    if out is not None:
        if overlap := output_faults(out, inputs_of_plan(document), option="--out"):
            faults += overlap  # nothing is tried there
        elif document.is_sound(FROZEN):
            unfit, accepted = _run_folder(document, out, machine.platform, node=node, accepted=accept_changes)
            named = any(fault.gate == "environment" for fault in faults)  # the lock decides about libraries
            faults += [each for each in unfit if not (named and LIBRARIES in (each.pointer or ""))]
    faults += _disk_faults(document, inputs, out, nodes)
    warnings = [*document.warnings, *inputs.warnings, *machine.warnings, *accepted]
    if code is not None and document.is_sound("code_commit"):
        warnings += code_warnings(code, frozen_commit=document.raw["code_commit"])
    return Checked(
        document=document,
        faults=tuple(dict.fromkeys(faults)),  # a lock that cannot be read is told by each gate that reads it
        known_code=code,
        known_platform=machine.platform,
        memory=machine.memory,
        warnings=tuple(warnings),
        not_checked=inputs.not_checked,
    )


def _run_folder(
    document: PlanDocument, out: Path, platform: Platform | None, *, node: int, accepted: bool
) -> tuple[list[Fault], list[str]]:
    """Check the run folder, and what it holds of a run against this machine; return faults and warnings."""
    faults = check_output(out, frozen_config_sha256=document.raw[FROZEN])
    hardware = document.group("hardware", Hardware)
    if faults or platform is None or hardware is None or (out / COMPLETION_MARKER).exists():
        return faults, []
    try:
        compared = compared_run(out, document.raw[FROZEN])
    except Refusal as refusal:
        return list(refusal.faults), []
    return check_resume(compared or out, platform, hardware, node=node, accepted=accepted)


def _environment_faults(document: PlanDocument) -> list[Fault]:
    if not document.is_sound("environment_lock_sha256"):
        return []
    lock_sha256, file = document.raw["environment_lock_sha256"], str(document.path)
    # An image of another lock differs from the plan's in every second package: one fault is enough.
    if faults := check_image(lock_sha256, file=file):
        return faults
    lock = find_lock(lock_sha256, file=file)
    if all(document.is_sound(group) for group in ("hardware", "vllm", "generation")):
        faults += lock_faults(document.raw, lock, file=file)
    return [*faults, *check_environment(lock)]


@dataclass(slots=True, kw_only=True)
class _Machine:
    """What was found of the machine that a plan would run on."""

    faults: list[Fault]
    warnings: list[str]
    platform: Platform | None = None
    memory: RankMemory | None = None


def _examined_machine(document: PlanDocument, inputs: Inputs, nodes: int) -> _Machine:
    """Compare this machine with what the plan asks for, as far as the plan says it."""
    machine = _Machine(faults=[], warnings=[])
    hardware, file = document.group("hardware", Hardware), str(document.path)
    if hardware is None:
        return machine
    inventory, ranks = read_inventory(), hardware.ranks_per_node(nodes)
    machine.faults += check_hardware(hardware, file=file, nodes=nodes, inventory=inventory)
    if hardware.accelerator == "cuda":
        strict = document.raw.get("determinism") == "strict"
        machine.faults += check_visible_kernels(inventory, ranks=ranks, strict=strict)
        need = shm_need(inventory, local_ranks=ranks, nodes=nodes, environ=os.environ)
        machine.faults += check_shm(need, file=file)
        if not isinstance(inventory, NvmlUnavailable):  # without GPUs, this is not what is missing
            machine.faults += check_compiler(os.environ, file=file)
    machine.platform = measure_platform(
        accelerator=hardware.accelerator, local_ranks=ranks, environ=os.environ, inventory=inventory
    )
    if document.plan is not None and inputs.model is not None:
        machine.memory = rank_memory(
            document.plan,
            inputs.model.folder,
            rows=_row_sizes(inputs, document.plan.generation),
            nodes=nodes,
            environ=os.environ,
            inventory=inventory,
        )
        if machine.memory is not None:
            unfit, near = check_memory(machine.memory, file=file, plan=document.plan)
            machine.faults += unfit
            machine.warnings += near
    return machine


def _row_sizes(inputs: Inputs, generation: Generation) -> RowSizes | None:
    """Return how large rows are, if all that it depends on was read."""
    if inputs.data is None or inputs.model is None or inputs.prompt is None:
        return None
    return row_sizes(inputs.data, model=inputs.model.folder, system=inputs.prompt.text, generation=generation)


def _disk_faults(document: PlanDocument, inputs: Inputs, out: Path | None, nodes: int) -> list[Fault]:
    """Check the disks of the run folder and, where vLLM samples, of the temporary folder, as far as needs are known."""
    need, plan = None if out is None else _run_need(document), document.plan
    run = None if out is None or need is None else (out, need)
    faults = [] if run is None else check_disk(*run)
    if plan is not None and plan.vllm is not None and plan.vllm.use and inputs.model is not None:
        linear = inputs.model.linear
        try:
            targets = resolve_targets(linear, plan.lora)
        except Refusal:
            return faults  # the check of the adapter's modules has reported it
        values = adapter_values((linear[name] for name in targets), plan.lora.rank)
        ranks = plan.hardware.ranks_per_node(nodes)
        faults += check_adapter_versions(FLOAT32 * values, ranks=ranks, run=run)
    return faults


def _run_need(document: PlanDocument) -> DiskNeed | None:
    """Return what the run takes on its disk, if everything is in order that it depends on."""
    hardware, optimisation = document.group("hardware", Hardware), document.group("optimisation", Optimisation)
    generation, objective = document.group("generation", Generation), document.group("objective", Objective)
    model, lora = document.group("model", Model), document.group("lora", Lora)
    if not (model and lora and optimisation and hardware and generation):
        return None
    if document.arm is None or not document.is_sound("objective"):
        return None
    folder = document.path.resolve().parent / model.path
    geometry = Geometry.of_groups(optimisation, hardware, generation, objective)
    try:
        return estimate_run_bytes(
            trainable_parameters=lora_parameter_bound(folder, lora.rank),
            # Beside those that rotation counts: a smoke run's boundary, and the best checkpoint of a validated run.
            checkpoints_kept=optimisation.save_total_limit + 1 + (document.raw.get("validation") is not None),
            max_steps=optimisation.max_steps,
            world_size=hardware.world_size,
            reference_adapter=has_reference(objective),
            processor_bytes=processor_bytes(folder),
            completions=0 if document.arm.is_sft else geometry.completions(optimisation.max_steps),
            completion_tokens=generation.max_completion_tokens,
        )
    except (Refusal, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # the check of the model has reported it
