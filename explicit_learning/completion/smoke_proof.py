"""What a finished run can prove about its interruptions.

A smoke run must prove that a new process restores the state that the old process left. It is complete only if a resume
audit shows that; reaching the last step is not enough. A main run holds such audits if `--audit` asked for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.hashing import sha256_file
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.rundir.completion_marker import AuditEntry, ResumeProbe
from explicit_learning.rundir.resume_audit import read_audits

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.rundir.launch_manifest import LaunchManifest

__all__ = ["broken_smoke_rules", "resume_probe"]

FIX = "start the smoke run again (--out): it did not prove that its state was restored"
ONCE_MORE = "run `el smoke` again with the same folder (--out): it trains the plan from the beginning"
CONTEXT = Context(gate="completion", fix=FIX, exit_code=ExitCode.INTERNAL)


def resume_probe(run: Path) -> ResumeProbe | None:
    """Return the marker's part about resume audits; ``None`` if the run has neither audits nor a boundary.

    Raises:
        Refusal: If an audit breaks its schema.
        OSError: If a file cannot be read.
    """
    boundary, audits = run / layout.SMOKE_BOUNDARY, read_audits(run)
    if not audits and not boundary.exists():
        return None
    return ResumeProbe(
        boundary_sha256=sha256_file(boundary) if boundary.exists() else None,
        audits=tuple(
            AuditEntry(
                file=recorded.file,
                sha256=recorded.sha256,
                checkpoint=recorded.audit.checkpoint,
                passed=recorded.audit.passed,
            )
            for recorded in audits
        ),
    )


def broken_smoke_rules(manifest: LaunchManifest) -> list[Fault]:
    """Return a fault for everything that a finished launch of a smoke run did not prove; none for a main run.

    The launch that trains a smoke plan without an interruption must have begun at step 0.

    Args:
        manifest: The launch manifest of the launch that reached the last step.

    Raises:
        Refusal: If an audit breaks its schema.
        OSError: If one cannot be read.
    """
    plan, boundary = manifest.plan, layout.checkpoint_name(SMOKE_STOP_STEP)
    if plan.run_mode != "smoke":
        return []
    if manifest.uninterrupted:
        if manifest.resume_checkpoint is None:
            return []
        found, expected = f"the last launch resumed {manifest.resume_checkpoint}", "one launch, from step 0"
        return [CONTEXT.fault(pointer="/resume_checkpoint", found=found, expected=expected, fix=ONCE_MORE)]
    faults = []
    if manifest.resume_checkpoint != boundary:
        found = f"the last launch started at {manifest.resume_checkpoint or 'step 0'}"
        expected = f"a launch that resumed {boundary}"
        faults.append(CONTEXT.fault(pointer="/resume_checkpoint", found=found, expected=expected))
    audits = [recorded.audit for recorded in read_audits(manifest.run)]
    audits = [audit for audit in audits if audit.launch_id == manifest.launch_id]
    passed = [audit for audit in audits if audit.passed and audit.checkpoint == boundary]
    if len(audits) != 1 or len(passed) != 1 or len(passed[0].ranks) != plan.hardware.world_size:
        found = f"{len(audits)} resume audits of the last launch, {len(passed)} of them passed"
        expected = f"one resume audit of the last launch, passed on {plan.hardware.world_size} ranks"
        faults.append(CONTEXT.fault(pointer="/resume_audits", found=found, expected=expected))
    return faults
