"""`el export`: a complete run's adapter, or merged weights, as a folder that needs the run no more.

The folder appears whole or not at all: it is made under another name beside its place, compared with what it was made
from, and stated, before it gets its own. The run is only read.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.completion.card import base_name
from explicit_learning.completion.export_statement import write_export_statement
from explicit_learning.data.image_grid import ResizeRules
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.evaluation.environment import environment_faults, measured_machine
from explicit_learning.evaluation.process import run_process
from explicit_learning.export.card import export_card
from explicit_learning.export.job import MODULE, MergeJob
from explicit_learning.export.model_files import (
    copy_model_files,
    copy_processor_files,
    merged_bytes,
    stored_type,
    unmergeable_faults,
    write_merged_config,
)
from explicit_learning.export.source import read_source
from explicit_learning.files.atomic import new_folder, require_free, write_bytes, write_text
from explicit_learning.files.canonical import canonical_bytes, sha256_json
from explicit_learning.files.child_environment import KEY_VARIABLE
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.strict_json import load_json
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import from_json, write_document
from explicit_learning.gates.disk import DiskNeed, check_disk
from explicit_learning.gates.output import place_faults
from explicit_learning.gates.signing import named_signer
from explicit_learning.gates.temporary import temporary_fault
from explicit_learning.inputs.outputs import inputs_of_paths, output_faults
from explicit_learning.launch.environment import rank_environment
from explicit_learning.model_files.adapter_names import adapted_modules
from explicit_learning.model_files.folders import ADAPTER_FILES
from explicit_learning.model_files.headers import processor_bytes
from explicit_learning.model_files.parts import PartCounts
from explicit_learning.rundir import layout
from explicit_learning.rundir.export_record import (
    EXPORT,
    ExportComparison,
    ExportedBase,
    ExportRecord,
    comparison_faults,
)

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

    from explicit_learning.export.source import ExportSource
    from explicit_learning.launch.environment import RankEnvironment
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.launches import Machine

__all__ = ["Exported", "export_run"]

CONTEXT = Context(gate="export", fix="choose another folder (-o)", exit_code=ExitCode.OUTPUT)
# Configuration, card, record and statement.
RECORD_BYTES = 2**20
OPTION = "-o"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        record: The export's record.
        files: Number of files.
        bytes: Their length.
    """

    record: ExportRecord
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """An export that is being made: of what, where, and how it computes."""

    source: ExportSource
    out: Path
    merged: bool
    dtype: str | None
    environment: RankEnvironment
    machine: Machine

    @property
    def plan(self) -> Plan:
        """The run's plan, for one process on a CPU."""
        return _on_a_cpu(self.source.plan)


def export_run(run: Path, out: Path, *, merged: bool, dtype: str | None, plan_file: Path | None) -> Exported:
    """Verify a run and write its export, signed with the key in ``EXPLICIT_SIGNING_KEY`` if there is one.

    Args:
        run: The run directory, or an archive of it.
        out: The export's folder; nothing may be there but an empty folder.
        merged: Whether base model and adapter are merged.
        dtype: Type that merged weights are written in, as torch names it; ``None`` keeps that of each.
        plan_file: The plan file beside the run's inputs; by default the one that the run was started with.

    Raises:
        Refusal: With 65 if the run is not complete and whole, or merged weights do not do what base model and adapter
            do; with 73 if the place is taken or inside what the run is made of; with 74 if the disk has no room; with
            78 if this environment is not its lock's. Nothing is written then.
    """
    signer = named_signer(os.environ.get(KEY_VARIABLE))
    _require_place(out)
    source = read_source(run, plan_file=plan_file)
    if faults := output_faults(out, [("the run", run), *inputs_of_paths(source.paths)], option=OPTION):
        raise Refusal(faults)
    model = source.base.folder
    if merged:
        needed = merged_bytes(model, dtype) + RECORD_BYTES
        faults = unmergeable_faults(model, adapted_modules(source.marker.parameters.tensors))
        faults += environment_faults([("exact", "cpu")])
    else:
        entries = source.marker.parameters.trainable
        needed = 4 * entries + processor_bytes(model) + RECORD_BYTES
    need = DiskNeed(needed_bytes=needed, files=len(list(model.rglob("*"))) + len(ADAPTER_FILES))
    faults += check_disk(out, need, what="the export", less="export the adapter alone, or in a shorter type")
    if faults:
        raise Refusal(faults)
    environment = rank_environment(_on_a_cpu(source.plan), os.environ)
    making = _Making(
        source=source,
        out=out,
        merged=merged,
        dtype=dtype,
        environment=environment,
        machine=measured_machine("cpu", environment),
    )
    try:
        with new_folder(out) as folder:
            record = _fill(folder, making, signer)
    except OSError as error:
        raise Refusal(write_fault(error, out)) from None
    written = FolderTree(out).files
    return Exported(record=record, files=len(written), bytes=sum(written.values()))


def _on_a_cpu(plan: Plan) -> Plan:
    """Return a plan as one process on a CPU computes with its model."""
    return replace(plan, hardware=replace(plan.hardware, accelerator="cpu", world_size=1))


def _require_place(out: Path) -> None:
    """Ask for a place where the export can appear.

    Raises:
        Refusal: If something is there, or nothing can be written there.
    """
    try:
        require_free(out)
    except OSError as error:
        expected = "nothing, or an empty folder"
        raise CONTEXT.refusal(file=out, found=error.strerror or str(error), expected=expected) from None
    if faults := place_faults(out):
        raise Refusal(faults)


def _fill(folder: Path, making: _Making, signer: CryptoSigner | None) -> ExportRecord:
    """Write everything of an export into its folder: weights, processor, card, record, and last the statement."""
    source = making.source
    model, plan = source.base.folder, source.plan
    dtype = (making.dtype or stored_type(model)) if making.merged else None
    comparison = None
    if making.merged:
        copy_model_files(model, folder)
        write_merged_config(model, folder, making.dtype)
        comparison = _merge(folder, making)
        if faults := list(comparison_faults(comparison, dtype=str(dtype), file=str(making.out))):
            raise Refusal(faults)
    else:
        copy_processor_files(model, folder)
        source.copy_adapter(folder)
    files = source.marker.adapter.files
    record = ExportRecord(
        kind="merged" if making.merged else "adapter",
        run_id=plan.run_id,
        arm=plan.arm,
        frozen_config_sha256=plan.frozen_config_sha256,
        completion_marker_sha256=source.marker_sha256,
        run_statement_sha256=source.statement_sha256,
        adapter_sha256=sha256_json({name: files[name] for name in ADAPTER_FILES}),
        adapter_tensors_sha256=source.marker.adapter.tensors_sha256,
        base_model=_base(making),
        modules=PartCounts.of(adapted_modules(source.marker.parameters.tensors)),
        dtype=dtype,
        comparison=comparison,
        machine=making.machine,
    )
    if not making.merged:
        _point_to_base(folder / layout.ADAPTER_CONFIG, record.base_model)
    tokens, pixels = plan.generation.max_image_tokens, None
    if tokens is not None:
        rules = ResizeRules.of_model(model, max_image_tokens=tokens)
        pixels = rules.min_pixels, rules.max_pixels
    write_text(folder / layout.MODEL_CARD, export_card(source.card(), record, pixels=pixels, image_tokens=tokens))
    write_document(folder / EXPORT, record, gate="export")
    write_export_statement(folder, signer)
    return record


def _base(making: _Making) -> ExportedBase:
    """Return what is said of the base model: its place only if it lies beside the export, and so can travel with it."""
    plan, model = making.source.plan, making.source.base.folder
    beside = model.resolve().parent == making.out.resolve().parent
    return ExportedBase(
        name=base_name(plan),
        revision=plan.model.revision,
        snapshot_sha256=plan.model.snapshot_sha256,
        path=f"../{model.resolve().name}" if beside else None,
    )


def _point_to_base(file: Path, base: ExportedBase) -> None:
    """Name the base model in an adapter's configuration as another machine knows it."""
    config = load_json(file, gate="export")
    config |= {"base_model_name_or_path": base.name, "revision": base.revision}
    write_bytes(file, canonical_bytes(config) + b"\n")


def _merge(folder: Path, making: _Making) -> ExportComparison:
    """Merge into a folder that holds the rest of the model, in a process of its own; return the comparison.

    Raises:
        Refusal: If the process fails, or there is no temporary folder.
    """
    try:
        scratch = tempfile.TemporaryDirectory(prefix="explicit-adapter-", ignore_cleanup_errors=True)
    except OSError as error:
        raise Refusal(temporary_fault(error)) from error
    with scratch as place:
        making.source.copy_adapter(Path(place))
        answer = Path(place) / "comparison.json"
        job = MergeJob(
            plan=making.plan,
            paths=making.source.paths,
            adapter=place,
            out=str(folder.resolve()),
            dtype=making.dtype,
            answer=str(answer),
        )
        run_process(
            MODULE, job, environment=making.environment, name="export", context=Context(gate="export").at(making.out)
        )
        return from_json(ExportComparison, json.loads(answer.read_bytes()))
