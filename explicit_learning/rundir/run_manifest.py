"""The run manifest: what a run is, frozen and hashed, and how far it has come.

The frozen part is fixed at the first launch; its hash goes to every rank and into every record, so that a run cannot
become another one half-way. The status is a small state machine, because "it was complete, then it ran again" must not
be expressible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from explicit_learning.errors import Context, ExitCode, found_text
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.tree import tree_document
from explicit_learning.files.typed_json import RESTORE, document, read_document, to_json, write_document
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan

__all__ = [
    "BaseModel",
    "CompletionRecord",
    "FrozenRun",
    "PlanIdentities",
    "RunManifest",
    "RunStatus",
    "amend_completed",
    "changed_plan_faults",
    "create_run_manifest",
    "note_launch",
    "plan_identities",
    "read_run_manifest",
    "run_manifest_of",
    "set_status",
    "write_run_manifest",
]

GATE = "run-manifest"
CONTEXT = Context(gate=GATE)
SCHEMA_VERSION = 1
RunStatus = Literal["planned", "running", "completed", "failed", "stopped", "budget_exhausted"]

# A killed run is still "running"; a failed or stopped one may be continued; the other two are the end.
TRANSITIONS: dict[RunStatus, set[RunStatus]] = {
    "planned": {"running"},
    "running": {"running", "completed", "failed", "stopped", "budget_exhausted"},
    "failed": {"running"},
    "stopped": {"running"},
    "completed": set(),
    "budget_exhausted": set(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """The base model: its revision, if the plan names one, and the hash of its files."""

    revision: str | None
    snapshot_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanIdentities:
    """Everything that a plan names, by hash; ``None`` where the arm has no such thing."""

    dataset_sha256: str
    dataset_manifest_sha256: str
    slot_manifest_sha256: str | None
    evaluation_manifest_sha256: str
    prompt_sha256: str
    environment_lock_sha256: str
    base_model: BaseModel
    initial_adapter_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenRun:
    """What never changes after a run's first launch.

    Attributes:
        plan_sha256: SHA-256 of the bytes of the plan's file.
        frozen_config_sha256: The plan's own hash.
        frozen_commit: Git commit that froze the plan.
        frozen_dirty: Whether that code had changes.
        identities: What the plan names, by hash.
    """

    run_id: str
    run_mode: str
    arm: str
    seed: int
    data_seed: int
    plan_sha256: str
    frozen_config_sha256: str
    frozen_commit: str
    frozen_dirty: bool
    identities: PlanIdentities


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRecord:
    """What a completed run's manifest says of its end."""

    optimizer_steps: int
    running_commit: str
    running_dirty: bool
    frozen_commit: str
    run_manifest_sha256: str
    frozen_config_sha256: str
    completion_marker_sha256: str


@document("run-manifest")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """The whole file.

    Attributes:
        run_manifest_sha256: Canonical hash of ``frozen``.
        status: How far the run has come.
        trained: Whether this is a completed main run.
        frozen: What the run is.
        last_launch_sha256: SHA-256 of the bytes of the newest record in ``launches/``; ``None`` before the first.
        completion: How it ended; ``None`` until it is complete.
    """

    schema_version: int = SCHEMA_VERSION
    run_manifest_sha256: str
    status: RunStatus
    trained: bool
    frozen: FrozenRun
    last_launch_sha256: str | None
    completion: CompletionRecord | None


def plan_identities(plan: Plan) -> PlanIdentities:
    """Return everything that a plan names, by hash."""
    return PlanIdentities(
        dataset_sha256=plan.data.dataset.sha256,
        dataset_manifest_sha256=plan.data.dataset_manifest.sha256,
        slot_manifest_sha256=plan.data.slot_manifest_sha256,
        evaluation_manifest_sha256=plan.data.evaluation_manifest.sha256,
        prompt_sha256=plan.prompt.sha256,
        environment_lock_sha256=plan.environment_lock_sha256,
        base_model=BaseModel(revision=plan.model.revision, snapshot_sha256=plan.model.snapshot_sha256),
        initial_adapter_sha256=plan.initial_adapter.sha256 if plan.initial_adapter else None,
    )


def create_run_manifest(plan: Plan, *, plan_sha256: str) -> RunManifest:
    """Return the manifest of a run that is planned.

    Args:
        plan: The plan.
        plan_sha256: SHA-256 of the bytes of its file.
    """
    frozen = FrozenRun(
        run_id=plan.run_id,
        run_mode=plan.run_mode,
        arm=plan.arm,
        seed=plan.seed,
        data_seed=plan.data_seed,
        plan_sha256=plan_sha256,
        frozen_config_sha256=plan.frozen_config_sha256,
        frozen_commit=plan.code_commit,
        frozen_dirty=plan.code_dirty,
        identities=plan_identities(plan),
    )
    sha256 = sha256_json(to_json(frozen))
    return RunManifest(
        run_manifest_sha256=sha256,
        status="planned",
        trained=False,
        frozen=frozen,
        last_launch_sha256=None,
        completion=None,
    )


def write_run_manifest(run: Path, manifest: RunManifest) -> None:
    """Write a run's manifest, whole or not at all.

    Raises:
        Refusal: If it breaks its schema (exit code 70).
        OSError: If it cannot be written.
    """
    write_document(run / layout.RUN_MANIFEST, manifest, gate=GATE)


def read_run_manifest(run: Path) -> RunManifest:
    """Return a run's manifest.

    Raises:
        Refusal: If there is none, if it breaks its schema, or if its frozen part has another hash.
    """
    return _with_its_hash(
        read_document(run / layout.RUN_MANIFEST, RunManifest, gate=GATE, fix=RESTORE), str(run / layout.RUN_MANIFEST)
    )


def run_manifest_of(tree: Tree) -> RunManifest:
    """Return the manifest of a run's files (see `read_run_manifest`)."""
    manifest = tree_document(tree, layout.RUN_MANIFEST, RunManifest, gate=GATE, fix=RESTORE)
    return _with_its_hash(manifest, tree.place(layout.RUN_MANIFEST))


def _with_its_hash(manifest: RunManifest, file: str) -> RunManifest:
    """Return a manifest whose frozen part has the hash that it names."""
    if (found := sha256_json(to_json(manifest.frozen))) != (expected := manifest.run_manifest_sha256):
        fix = "restore the file from a copy: its frozen part was changed"
        raise CONTEXT.refusal(file=file, pointer="/run_manifest_sha256", found=found, expected=expected, fix=fix)
    return manifest


def changed_plan_faults(run: Path, manifest: RunManifest) -> list[Fault]:
    """Return a fault if the plan in a run folder is not the file that the run's manifest names by hash.

    Raises:
        OSError: If the plan cannot be read.
    """
    path, expected = run / layout.PLAN, manifest.frozen.plan_sha256
    found = sha256_file(path) if path.is_file() else None
    if found == expected:
        return []
    return [
        CONTEXT.fault(
            file=path,
            found="no such file" if found is None else f"SHA-256 {found}: it was changed after the run's first launch",
            expected=f"SHA-256 {expected}, which is frozen in {layout.RUN_MANIFEST}",
            fix="restore the file from a copy, or choose another folder (--out)",
        )
    ]


def set_status(run: Path, status: RunStatus) -> RunManifest:
    """Move a run to another status and return its manifest. Completion is `amend_completed`'s.

    Raises:
        Refusal: If the run cannot go there from where it is.
        OSError: If the manifest cannot be written.
    """
    manifest = replace(_may_become(run, status), status=status)
    write_run_manifest(run, manifest)
    return manifest


def note_launch(run: Path, start_sha256: str) -> None:
    """Enter the hash of a launch's record, which must have been written before.

    Raises:
        Refusal: If the manifest cannot be read.
        OSError: If it cannot be written.
    """
    write_run_manifest(run, replace(read_run_manifest(run), last_launch_sha256=start_sha256))


def amend_completed(
    run: Path, *, optimizer_steps: int, running_commit: str, running_dirty: bool, marker_sha256: str
) -> RunManifest:
    """Record that a run is complete, and return its manifest. Only a main run is ``trained``.

    Args:
        run: The run directory.
        optimizer_steps: Optimizer steps done.
        running_commit: Git commit of the code that finished the run.
        running_dirty: Whether that code differs from its commit.
        marker_sha256: SHA-256 of the bytes of the completion marker, which must have been written before.

    Raises:
        Refusal: If the run cannot be completed from where it is.
        OSError: If the manifest cannot be written.
    """
    manifest = _may_become(run, "completed")
    completion = CompletionRecord(
        optimizer_steps=optimizer_steps,
        running_commit=running_commit,
        running_dirty=running_dirty,
        frozen_commit=manifest.frozen.frozen_commit,
        run_manifest_sha256=manifest.run_manifest_sha256,
        frozen_config_sha256=manifest.frozen.frozen_config_sha256,
        completion_marker_sha256=marker_sha256,
    )
    trained = manifest.frozen.run_mode == "main"
    manifest = replace(manifest, status="completed", trained=trained, completion=completion)
    write_run_manifest(run, manifest)
    return manifest


def _may_become(run: Path, status: RunStatus) -> RunManifest:
    """Return a run's manifest if the run can go from its status to another."""
    manifest = read_run_manifest(run)
    if status not in TRANSITIONS[manifest.status]:
        raise CONTEXT.refusal(
            file=run / layout.RUN_MANIFEST,
            pointer="/status",
            found=found_text(manifest.status),
            expected=f"a status from which a run can become {status}",
            fix="choose another folder (--out) to run again",
            exit_code=ExitCode.OUTPUT,
        )
    return manifest
