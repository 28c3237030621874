"""All gates at once: everything that would stop a run, found before anything is trained.

A gate that needs a part of the plan which is itself wrong is skipped; every other one speaks, so that one round of
corrections is enough. The order is that of the reader's attention: the plan, what it names, then the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.data.dataset import evidence_faults
from explicit_learning.data.preflight import Tokens, asked_rows, check_envelope
from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.errors import Fault, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.typed_json import from_json
from explicit_learning.gates.disk import check_disk, estimate_run_bytes
from explicit_learning.gates.environment import check_environment
from explicit_learning.gates.hardware import check_hardware
from explicit_learning.gates.image import check_image
from explicit_learning.gates.output import check_output
from explicit_learning.gates.shm import LoaderShape, check_shm, required_shm_bytes
from explicit_learning.inputs.data import check_data, image_tokens_per_row, is_as_frozen
from explicit_learning.inputs.folders import check_folder
from explicit_learning.lock.shipped import find_lock
from explicit_learning.model_files.headers import lora_parameter_bound, processor_bytes
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.reading import PlanDocument, read_plan
from explicit_learning.plan.typed_plan import (
    Data,
    Hardware,
    InitialAdapter,
    Lora,
    Model,
    Optimisation,
    Prompt,
    ResolvedPaths,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from explicit_learning.arms import Arm
    from explicit_learning.data.dataset import CheckedDataset

__all__ = ["Checked", "check_inputs", "check_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the gates found."""

    document: PlanDocument
    faults: tuple[Fault, ...]

    @property
    def paths(self) -> ResolvedPaths:
        """Absolute paths of what the plan names."""
        return _resolve(self.document)


def _resolve(document: PlanDocument) -> ResolvedPaths:
    plan = document.plan
    if plan is None:
        raise AssertionError("paths of a refused plan")
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
    )


def check_plan(document: PlanDocument, *, out: Path | None, nodes: int = 1) -> Checked:
    """Run every gate on a plan.

    Args:
        document: The plan as `read_plan` read it.
        out: The run folder; ``None`` leaves the gates on output and disk out.
        nodes: Machines that share the ranks; this one is asked for its part.
    """
    path = document.path
    gates = _Gates(document=document, base=path.resolve().parent, file=str(path), out=out, nodes=nodes)
    return Checked(document=document, faults=(*document.faults, *gates.faults()))


def check_inputs(path: Path, *, expected: str) -> ResolvedPaths:
    """Check what a plan names, and not the machine, and return where it lies.

    Args:
        path: The plan.
        expected: The frozen hash that it must have.

    Raises:
        Refusal: With everything that is wrong with the plan, the model, the adapter, the prompt or the data.
    """
    document = read_plan(path)
    gates = _Gates(document=document, base=path.resolve().parent, file=str(path), out=None)
    faults = [*document.faults, *gates.input_faults()]
    if document.plan is not None and (found := document.plan.frozen_config_sha256) != expected:
        fix = "name the plan that the run was started with"
        pointer = "/frozen_config_sha256"
        faults.append(Fault(gate="plan", file=str(path), pointer=pointer, found=found, expected=expected, fix=fix))
    if faults:
        raise Refusal(faults)
    return _resolve(document)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gates:
    document: PlanDocument
    base: Path
    file: str
    out: Path | None
    nodes: int = 1

    def input_faults(self) -> Iterator[Fault]:
        asking = [*self._run((("model",), self._model), (("prompt",), self._prompt))]
        yield from asking
        yield from self._run((("initial_adapter",), self._adapter))
        yield from self._run((("data",), partial(self._data, asking_is_sound=not asking)))

    def faults(self) -> Iterator[Fault]:
        yield from self._run((("environment_lock_sha256",), self._environment))
        yield from self.input_faults()
        yield from self._run(
            (("hardware",), self._hardware),
            (("frozen_config_sha256",), self._output),
            (("arm", "model", "lora", "optimisation", "hardware", "generation", "objective"), self._disk),
        )

    def _run(self, *gates: tuple[tuple[str, ...], Callable[[], list[Fault]]]) -> Iterator[Fault]:
        """Run the gates whose groups of the plan are in order."""
        for groups, gate in gates:
            if all(map(self._sound, groups)):
                try:
                    yield from gate()
                except Refusal as refusal:
                    yield from refusal.faults

    def _sound(self, group: str) -> bool:
        return self.document.group_is_sound(group) and group in self.document.raw

    def _group(self, name: str) -> dict[str, Any]:
        group: dict[str, Any] = self.document.raw[name]
        return group

    def _environment(self) -> list[Fault]:
        lock_sha256 = self.document.raw["environment_lock_sha256"]
        # An image of another lock differs from the plan's in every second package: one fault says it.
        return check_image(lock_sha256, file=self.file) or check_environment(find_lock(lock_sha256, file=self.file))

    def _model(self) -> list[Fault]:
        model = from_json(Model, self._group("model"))
        return check_folder(self.base / model.path, model.snapshot_sha256, kind="model")

    def _adapter(self) -> list[Fault]:
        if self.document.raw["initial_adapter"] is None:
            return []
        adapter = from_json(InitialAdapter, self._group("initial_adapter"))
        return check_folder(self.base / adapter.path, adapter.sha256, kind="adapter")

    def _prompt(self) -> list[Fault]:
        prompt = from_json(Prompt, self._group("prompt"))
        path = self.base / prompt.path
        load_system_prompt(path)
        if (found := sha256_file(path)) == prompt.sha256:
            return []
        fix = "restore the prompt that was frozen, or freeze the draft again"
        expected = f"SHA-256 {prompt.sha256}, as frozen"
        return [Fault(gate="prompt", file=str(path), found=f"SHA-256 {found}", expected=expected, fix=fix)]

    def _data(self, *, asking_is_sound: bool) -> list[Fault]:
        if self.document.faults and is_as_frozen(from_json(Data, self._group("data")), base=self.base):
            return []
        arm = ARMS[self.document.raw["arm"]] if self._sound("arm") else None
        faults, checked = check_data(from_json(Data, self._group("data")), arm=arm, base=self.base, file=self.file)
        whole = not faults
        if whole and all(map(self._sound, ("hardware", "optimisation", "generation"))):
            faults += self._shm(image_tokens_per_row(checked))
        if whole and asking_is_sound and arm and all(map(self._sound, ("model", "prompt", "generation"))):
            faults += self._envelope(checked, arm)
        if self._sound("objective"):
            faults += evidence_faults(checked, objective=self.document.raw["objective"])
        return faults

    def _envelope(self, checked: CheckedDataset, arm: Arm) -> list[Fault]:
        system = load_system_prompt(self.base / self._group("prompt")["path"])
        generation = self._group("generation")
        return check_envelope(
            asked_rows(checked, arm),
            Tokens.of_model(self.base / self._group("model")["path"], system),
            max_prompt_tokens=generation["max_prompt_tokens"],
            max_images_per_prompt=generation["max_images_per_prompt"],
            max_completion_tokens=generation["max_completion_tokens"],
            file=self.file,
        )

    def _hardware(self) -> list[Fault]:
        return check_hardware(from_json(Hardware, self._group("hardware")), file=self.file, nodes=self.nodes)

    def _shm(self, image_tokens: int) -> list[Fault]:
        hardware = from_json(Hardware, self._group("hardware"))
        optimisation = from_json(Optimisation, self._group("optimisation"))
        generation = self._group("generation")
        shape = LoaderShape(
            ranks=-(-hardware.world_size // self.nodes),
            workers=optimisation.dataloader_workers,
            prefetch=optimisation.dataloader_prefetch,
            rows_per_batch=optimisation.per_device_batch_size,
            tokens_per_row=generation["context_tokens"],
            image_tokens_per_row=min(image_tokens, generation["max_prompt_tokens"]),
        )
        return check_shm(required_shm_bytes(shape, hardware.accelerator), file=self.file)

    def _output(self) -> list[Fault]:
        if self.out is None:
            return []
        return check_output(self.out, frozen_config_sha256=self.document.raw["frozen_config_sha256"])

    def _disk(self) -> list[Fault]:
        if self.out is None:
            return []
        raw, lora = self.document.raw, from_json(Lora, self._group("lora"))
        folder = self.base / self._group("model")["path"]
        optimisation = from_json(Optimisation, self._group("optimisation"))
        objective = raw["objective"]
        longest = self._group("generation")["max_completion_tokens"]
        try:
            need = estimate_run_bytes(
                trainable_parameters=lora_parameter_bound(folder, lora.rank),
                checkpoints_kept=optimisation.save_total_limit + 1,
                max_steps=optimisation.max_steps,
                world_size=self._group("hardware")["world_size"],
                reference_adapter=objective is not None and objective["beta"] > 0,
                processor_bytes=processor_bytes(folder),
                completions=0 if objective is None else Geometry.of_document(raw).completions(optimisation.max_steps),
                completion_tokens=longest,
            )
        except (OSError, Refusal):
            return []  # the model gate has said what is wrong with the folder
        return check_disk(self.out, need)
