"""What a finished run can prove about its interruptions.

A smoke run exists for one claim: a new process found the state that the old one left. So it is complete only with that
proof; reaching its last step says nothing. Other runs carry the proof if somebody asked for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.files.hashing import sha256_file
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir.checkpoints import checkpoint_name
from explicit_learning.rundir.resume_audit import read_audits
from explicit_learning.rundir.smoke_boundary import BOUNDARY_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.rundir.launch_manifest import LaunchManifest

__all__ = ["broken_smoke_rules", "resume_probe"]

GATE = "completion"
FIX = "begin the smoke run anew (--out): what it was to show was not shown"


def resume_probe(run: Path) -> dict[str, Any] | None:
    """Return the marker's part about resume audits; ``None`` if the run has neither audits nor a boundary.

    Raises:
        Refusal: If an audit breaks its schema.
        OSError: If a file cannot be read.
    """
    boundary, audits = run / BOUNDARY_NAME, read_audits(run)
    if not audits and not boundary.exists():
        return None
    return {
        "boundary_sha256": sha256_file(boundary) if boundary.exists() else None,
        "audits": [
            {"file": file, "sha256": sha256, "checkpoint": audit["checkpoint"], "passed": audit["passed"]}
            for file, sha256, audit in audits
        ],
    }


def broken_smoke_rules(manifest: LaunchManifest) -> list[Fault]:
    """Return a fault for everything that a finished launch of a smoke run did not prove; none for a main run.

    Args:
        manifest: The launch manifest of the launch that reached the last step.

    Raises:
        Refusal: If an audit breaks its schema.
        OSError: If one cannot be read.
    """
    plan, boundary = manifest.plan, checkpoint_name(SMOKE_STOP_STEP)
    if plan.run_mode != "smoke":
        return []
    faults = []
    if manifest.resume_checkpoint != boundary:
        found = f"the last launch began at {manifest.resume_checkpoint or 'step 0'}"
        faults.append(_fault("resume_checkpoint", found, f"a launch that resumed {boundary}"))
    audits = [audit for _, _, audit in read_audits(manifest.run) if audit["launch_id"] == manifest.launch_id]
    passed = [audit for audit in audits if audit["passed"] and audit["checkpoint"] == boundary]
    if len(audits) != 1 or len(passed) != 1 or len(passed[0]["ranks"]) != plan.hardware.world_size:
        found = f"{len(audits)} resume audits of the last launch, {len(passed)} of them passed"
        faults.append(_fault("resume_audits", found, f"one, passed on {plan.hardware.world_size} ranks"))
    return faults


def _fault(rule: str, found: str, expected: str) -> Fault:
    return Fault(gate=GATE, pointer=f"/{rule}", found=found, expected=expected, fix=FIX, exit_code=ExitCode.INTERNAL)
