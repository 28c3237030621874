"""The run manifest: what a run is, frozen and hashed, and how far it has come.

The frozen part is fixed at the first launch; its hash goes to every rank and into every record, so that a run cannot
become another one half-way. The status is a small state machine, because "it was complete, then it ran again" must not
be expressible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.errors import ExitCode, Fault, Refusal, found_text
from explicit_learning.files.atomic import write_json
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.plan.typed_plan import Plan

__all__ = [
    "RUN_MANIFEST_NAME",
    "RunStatus",
    "amend_completed",
    "create_run_manifest",
    "plan_identities",
    "read_run_manifest",
    "set_status",
    "write_run_manifest",
]

GATE = "run-manifest"
RUN_MANIFEST_NAME = "run-manifest.json"
SCHEMA_VERSION = 1
RunStatus = Literal["planned", "running", "completed", "failed", "stopped", "budget_exhausted"]

# A killed run is still "running"; a failed or stopped one may be continued; the other two are the end.
TRANSITIONS: dict[str, set[str]] = {
    "planned": {"running"},
    "running": {"running", "completed", "failed", "stopped", "budget_exhausted"},
    "failed": {"running"},
    "stopped": {"running"},
    "completed": set(),
    "budget_exhausted": set(),
}


def plan_identities(plan: Plan) -> dict[str, Any]:
    """Return everything that a plan names, by hash."""
    return {
        "dataset_sha256": plan.data.dataset.sha256,
        "dataset_manifest_sha256": plan.data.dataset_manifest.sha256,
        "slot_manifest_sha256": plan.data.slot_manifest_sha256,
        "evaluation_manifest_sha256": plan.data.evaluation_manifest.sha256,
        "prompt_sha256": plan.prompt.sha256,
        "environment_lock_sha256": plan.environment_lock_sha256,
        "base_model": {"revision": plan.model.revision, "snapshot_sha256": plan.model.snapshot_sha256},
        "initial_adapter_sha256": plan.initial_adapter.sha256 if plan.initial_adapter else None,
    }


def create_run_manifest(
    plan: Plan, *, plan_sha256: str, hardware: dict[str, Any], image: dict[str, Any]
) -> dict[str, Any]:
    """Return the manifest of a run that is planned.

    Args:
        plan: The plan.
        plan_sha256: SHA-256 of the bytes of its file.
        hardware: The hardware as the gates found it.
        image: The image's identity as the gates found it.
    """
    frozen = {
        "run_id": plan.run_id,
        "run_mode": plan.run_mode,
        "arm": plan.arm,
        "seed": plan.seed,
        "data_seed": plan.data_seed,
        "plan_sha256": plan_sha256,
        "frozen_config_sha256": plan.frozen_config_sha256,
        "frozen_commit": plan.code_commit,
        "frozen_dirty": plan.code_dirty,
        "identities": plan_identities(plan),
        "image": image,
        "hardware": hardware,
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "run_manifest_sha256": sha256_json(frozen),
        "status": "planned",
        "trained": False,
        "frozen": frozen,
        "completion": None,
    }


def write_run_manifest(run: Path, document: dict[str, Any]) -> None:
    """Write a run's manifest, whole or not at all.

    Raises:
        OSError: If it cannot be written.
    """
    write_json(run / RUN_MANIFEST_NAME, document)


def read_run_manifest(run: Path) -> dict[str, Any]:
    """Return a run's manifest.

    Raises:
        Refusal: If there is none, if it breaks its schema, or if its frozen part has another hash.
    """
    path = run / RUN_MANIFEST_NAME
    document: dict[str, Any] = load_json(path, gate=GATE)
    if faults := validate(document, "run-manifest", gate=GATE, file=str(path)):
        raise Refusal(faults)
    if (found := sha256_json(document["frozen"])) != (expected := document["run_manifest_sha256"]):
        fix = "restore the file from a copy: its frozen part was changed"
        pointer = "/run_manifest_sha256"
        raise Refusal(Fault(gate=GATE, file=str(path), pointer=pointer, found=found, expected=expected, fix=fix))
    return document


def set_status(run: Path, status: RunStatus) -> dict[str, Any]:
    """Move a run to another status and return its manifest. Completion is `amend_completed`'s.

    Raises:
        Refusal: If the run cannot go there from where it is.
        OSError: If the manifest cannot be written.
    """
    document = read_run_manifest(run)
    _check_transition(run, document["status"], status)
    document["status"] = status
    write_run_manifest(run, document)
    return document


def amend_completed(run: Path, *, optimizer_steps: int, running_commit: str, marker_sha256: str) -> dict[str, Any]:
    """Record that a run is complete, and return its manifest. Only a main run is ``trained``.

    Args:
        run: The run directory.
        optimizer_steps: Optimizer steps done.
        running_commit: Git commit of the code that finished the run.
        marker_sha256: SHA-256 of the bytes of the completion marker, which must have been written before.

    Raises:
        Refusal: If the run cannot be completed from where it is.
        OSError: If the manifest cannot be written.
    """
    document = read_run_manifest(run)
    _check_transition(run, document["status"], "completed")
    frozen = document["frozen"]
    document["status"] = "completed"
    document["trained"] = frozen["run_mode"] == "main"
    document["completion"] = {
        "optimizer_steps": optimizer_steps,
        "running_commit": running_commit,
        "frozen_commit": frozen["frozen_commit"],
        "run_manifest_sha256": document["run_manifest_sha256"],
        "frozen_config_sha256": frozen["frozen_config_sha256"],
        "completion_marker_sha256": marker_sha256,
    }
    write_run_manifest(run, document)
    return document


def _check_transition(run: Path, current: str, status: RunStatus) -> None:
    if status not in TRANSITIONS[current]:
        raise Refusal(
            Fault(
                gate=GATE,
                file=str(run / RUN_MANIFEST_NAME),
                pointer="/status",
                found=found_text(current),
                expected=f"a status from which a run can become {status}",
                fix="choose another folder (--out) to run again",
                exit_code=ExitCode.OUTPUT,
            )
        )
