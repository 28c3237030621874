"""Resume audits: proof that a launch goes on with exactly the state its checkpoint was written from.

Files prove little here. A checkpoint can be perfect while a loader restores nothing of it, skips a subfolder, or is not
called at all in a newer library; training then goes on from the wrong state, and every loss curve looks fine. So each
rank digests its *live* state when a checkpoint is written and stores the digests in it, and digests its live state
again, in the resuming process, before the first step. This module compares, records and refuses; it imports no torch,
so that the launcher and any verifier can read the records.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.typed_json import RESTORE, document, read_document, write_document
from explicit_learning.model_files.folders import POLICY_ADAPTER
from explicit_learning.rundir import layout
from explicit_learning.rundir.smoke_boundary import BoundaryProof

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.state_digests import Components

__all__ = [
    "ComparedComponent",
    "RankAudit",
    "RecordedAudit",
    "ResumeAudit",
    "audit_faults",
    "audit_of",
    "compare_components",
    "process_nonce",
    "read_audits",
    "required_loaders",
    "write_audit",
]

GATE = "resume-audit"
FIX = (
    "do not use this run: the installed transformers, trl and peft do not resume as they should; report it as a defect "
    "with this file (CONTRIBUTING.md says where)"
)
CONTEXT = Context(gate=GATE, fix=FIX, exit_code=ExitCode.INTERNAL)
SCHEMA_VERSION = 1
KIND = "resume-audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedComponent:
    """One component of a rank's state: its digest in the checkpoint and live, ``None`` where it is absent."""

    name: str
    at_checkpoint: str | None
    as_loaded: str | None
    equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAudit:
    """What one rank found before its first step.

    Attributes:
        rank: The rank.
        process_nonce: Random name of its process.
        loaders_called: Parts that a loader restored, in order.
        loaders_missing: Parts that no loader restored.
        components: Its state, compared.
    """

    rank: int
    process_nonce: str
    loaders_called: tuple[str, ...]
    loaders_missing: tuple[str, ...]
    components: tuple[ComparedComponent, ...]


@document("resume-audit")
@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAudit:
    """The whole file.

    Attributes:
        checkpoint: The checkpoint that was resumed.
        step: Optimizer steps done at it.
        passed: Whether nothing was wrong.
        boundary: The comparison with a smoke run's boundary file; ``None`` in main runs.
        ranks: What every rank found, by rank.
    """

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    run_id: str
    launch_id: str
    frozen_config_sha256: str
    run_manifest_sha256: str
    checkpoint: str
    step: int
    passed: bool
    boundary: BoundaryProof | None
    ranks: tuple[RankAudit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAudit:
    """An audit of a run, with its file.

    Attributes:
        file: POSIX path relative to the run directory.
        sha256: SHA-256 of its bytes.
        audit: The audit.
    """

    file: str
    sha256: str
    audit: ResumeAudit


@cache
def process_nonce() -> str:
    """Return this process's random name: process ids are reused, and equal in two containers."""
    return secrets.token_hex(16)


def required_loaders(*, reference: bool) -> list[str]:
    """Return the parts of a rank's state that a loader must restore, in order.

    Args:
        reference: Whether the model has a reference adapter.
    """
    references = [layout.REFERENCE_ADAPTER] if reference else []
    return [POLICY_ADAPTER, *references, "optimizer", "scheduler", "counters", "random_streams"]


def compare_components(at_checkpoint: Components, as_loaded: Components) -> tuple[ComparedComponent, ...]:
    """Compare the digests that a checkpoint holds with those of the live state."""
    return tuple(
        ComparedComponent(
            name=name, at_checkpoint=stored, as_loaded=as_loaded.get(name), equal=stored == as_loaded.get(name)
        )
        for name, stored in at_checkpoint.items()
    )


def audit_of(
    manifest: LaunchManifest, ranks: Sequence[RankAudit], boundary: BoundaryProof | None, *, step: int
) -> ResumeAudit:
    """Return the audit of a launch that resumes a checkpoint.

    Args:
        manifest: The launch manifest.
        ranks: What every rank found, by rank.
        boundary: The comparison with a smoke run's boundary file; ``None`` in main runs.
        step: Optimizer steps done at the checkpoint.
    """
    audit = ResumeAudit(
        run_id=manifest.plan.run_id,
        launch_id=manifest.launch_id,
        frozen_config_sha256=manifest.plan.frozen_config_sha256,
        run_manifest_sha256=manifest.run_manifest_sha256,
        checkpoint=str(manifest.resume_checkpoint),
        step=step,
        passed=False,
        boundary=boundary,
        ranks=tuple(ranks),
    )
    return replace(audit, passed=not audit_faults(audit))


def audit_faults(audit: ResumeAudit) -> list[Fault]:
    """Return everything that an audit found wrong."""
    return list(_faults(audit, CONTEXT.at(layout.resume_audit_file(audit.checkpoint, audit.launch_id))))


def _faults(audit: ResumeAudit, context: Context) -> Iterator[Fault]:
    for rank in audit.ranks:
        place = f"/ranks/{rank.rank}"
        for loader in rank.loaders_missing:
            pointer = f"{place}/loaders_missing"
            expected = f"a loader that restores {loader} before the first step"
            yield context.fault(pointer=pointer, found=f"{loader} was not restored", expected=expected)
        for item in rank.components:
            if not item.equal:
                yield context.fault(
                    pointer=f"{place}/components/{item.name}",
                    found=f"{item.name} is {item.as_loaded or 'nothing'} as loaded",
                    expected=f"{item.at_checkpoint or 'nothing'}, as it was at {audit.checkpoint}",
                )
    if audit.boundary is not None and not audit.boundary.distinct_processes:
        yield context.fault(
            pointer="/boundary/distinct_processes",
            found="a rank's process is one of those that wrote the boundary",
            expected="a new process on every rank",
        )


def write_audit(run: Path, audit: ResumeAudit) -> str:
    """Record an audit, passed or not, and return its file's POSIX path relative to the run directory.

    Raises:
        Refusal: If it breaks its schema (exit code 70).
        OSError: If it cannot be written.
    """
    file = layout.resume_audit_file(audit.checkpoint, audit.launch_id)
    (run / file).parent.mkdir(exist_ok=True)
    write_document(run / file, audit, gate=GATE)
    return file


def read_audits(run: Path) -> list[RecordedAudit]:
    """Return a run's audits by time of writing.

    Raises:
        Refusal: If one breaks its schema.
        OSError: If one cannot be read.
    """
    paths = (run / layout.RESUME_AUDITS).glob("*.json")
    return [
        RecordedAudit(
            file=path.relative_to(run).as_posix(),
            sha256=sha256_file(path),
            audit=read_document(path, ResumeAudit, gate=GATE, fix=RESTORE),
        )
        for path in sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))
    ]
