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
    from collections.abc import Iterable
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.resume_audit import ResumeAudit

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


def broken_smoke_rules(
    plan: Plan,
    audits: Iterable[ResumeAudit],
    *,
    launch_id: str,
    checkpoint: str | None,
    uninterrupted: bool = False,
) -> list[Fault]:
    """Return a fault for everything that a finished launch of a smoke run did not prove; none for a main run.

    The launch that trains a smoke plan without an interruption must have begun at step 0.

    Args:
        plan: The plan.
        audits: The run's resume audits.
        launch_id: Name of the launch that reached the last step.
        checkpoint: The checkpoint that it resumed; ``None`` if it began at step 0.
        uninterrupted: Whether it trained the plan without an interruption, to be compared.
    """
    boundary = layout.checkpoint_name(SMOKE_STOP_STEP)
    if plan.run_mode != "smoke":
        return []
    if uninterrupted:
        if checkpoint is None:
            return []
        found, expected = f"the last launch resumed {checkpoint}", "one launch, from step 0"
        return [CONTEXT.fault(pointer="/resume_checkpoint", found=found, expected=expected, fix=ONCE_MORE)]
    faults = []
    if checkpoint != boundary:
        found = f"the last launch started at {checkpoint or 'step 0'}"
        expected = f"a launch that resumed {boundary}"
        faults.append(CONTEXT.fault(pointer="/resume_checkpoint", found=found, expected=expected))
    own, ranks = [audit for audit in audits if audit.launch_id == launch_id], list(range(plan.hardware.world_size))
    passed = [audit for audit in own if audit.passed and audit.boundary is not None and audit.checkpoint == boundary]
    if len(own) != 1 or len(passed) != 1 or [rank.rank for rank in passed[0].ranks] != ranks:
        found = f"{len(own)} resume audits of the last launch, {len(passed)} of them passed"
        expected = f"one resume audit of the last launch, passed on {len(ranks)} ranks and compared with the boundary"
        faults.append(CONTEXT.fault(pointer="/resume_audits", found=found, expected=expected))
    return faults
