"""Resume audits: proof that a launch goes on with exactly the state its checkpoint was written from.

Files prove little here. A checkpoint can be perfect while a loader restores nothing of it, skips a subfolder, or is not
called at all in a newer library; training then goes on from the wrong state, and every loss curve looks fine. So each
rank digests its *live* state when a checkpoint is written and stores the digests in it, and digests its live state
again, in the resuming process, before the first step. This module compares, records and refuses; it imports no torch,
so that the launcher and any verifier can read the records.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.files.atomic import write_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.smoke_boundary import BoundaryProof
    from explicit_learning.rundir.state_digests import Components

__all__ = [
    "AUDIT_FOLDER",
    "RankAudit",
    "audit_document",
    "audit_faults",
    "audit_file",
    "process_nonce",
    "read_audits",
    "write_audit",
]

GATE = "resume-audit"
AUDIT_FOLDER = "resume-audits"
SCHEMA_VERSION = 1
DEFECT = "do not use this run: report the file, the installed transformers, trl and peft do not resume as they should"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAudit:
    """What one rank found before its first step.

    Attributes:
        rank: The rank.
        process_nonce: Random name of its process.
        loaders_called: Parts that a loader restored, in order.
        loaders_missing: Parts that no loader restored.
        at_checkpoint: Digests that the checkpoint holds.
        as_loaded: Digests of the live state.
    """

    rank: int
    process_nonce: str
    loaders_called: tuple[str, ...]
    loaders_missing: tuple[str, ...]
    at_checkpoint: Components
    as_loaded: Components

    def to_json(self) -> dict[str, Any]:
        """Return the rank's entry of the audit document."""
        return {
            "rank": self.rank,
            "process_nonce": self.process_nonce,
            "loaders_called": list(self.loaders_called),
            "loaders_missing": list(self.loaders_missing),
            "components": [
                {
                    "name": name,
                    "at_checkpoint": stored,
                    "as_loaded": self.as_loaded.get(name),
                    "equal": stored == self.as_loaded.get(name),
                }
                for name, stored in self.at_checkpoint.items()
            ],
        }


@cache
def process_nonce() -> str:
    """Return this process's random name: process ids are reused, and equal in two containers."""
    return secrets.token_hex(16)


def audit_file(manifest: LaunchManifest) -> str:
    """Return where a launch's audit goes, as a POSIX path relative to the run directory."""
    return f"{AUDIT_FOLDER}/{manifest.resume_checkpoint}-{manifest.launch_id}.json"


def audit_document(
    manifest: LaunchManifest, ranks: Sequence[RankAudit], boundary: BoundaryProof | None, *, step: int
) -> dict[str, Any]:
    """Return the audit of a launch, in the form of ``schemas/resume-audit.schema.json``.

    Args:
        manifest: The launch manifest.
        ranks: What every rank found, by rank.
        boundary: What a smoke run's boundary file says; ``None`` in main runs.
        step: Optimizer steps done at the checkpoint.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "resume-audit",
        "run_id": manifest.plan.run_id,
        "launch_id": manifest.launch_id,
        "frozen_config_sha256": manifest.plan.frozen_config_sha256,
        "run_manifest_sha256": manifest.run_manifest_sha256,
        "checkpoint": manifest.resume_checkpoint,
        "step": step,
        "passed": False,
        "boundary": boundary.to_json() if boundary else None,
        "ranks": [rank.to_json() for rank in ranks],
    }
    return document | {"passed": not audit_faults(document, file="")}


def audit_faults(document: Mapping[str, Any], *, file: str) -> list[Fault]:
    """Return everything that an audit found wrong.

    Args:
        document: The audit.
        file: Where it is stored, for the faults.
    """
    return list(_faults(document, file))


def _faults(document: Mapping[str, Any], file: str) -> Iterator[Fault]:
    for entry in document["ranks"]:
        place = f"/ranks/{entry['rank']}"
        for loader in entry["loaders_missing"]:
            yield _fault(file, f"{place}/loaders_missing", f"{loader} was not restored", f"{loader} restored")
        for item in entry["components"]:
            if not item["equal"]:
                found, expected = item["as_loaded"] or "nothing", item["at_checkpoint"] or "nothing"
                pointer = f"{place}/components/{item['name']}"
                yield _fault(
                    file,
                    pointer,
                    f"{item['name']} is {found} as loaded",
                    f"{expected}, as it was at {document['checkpoint']}",
                )
    boundary = document["boundary"]
    if boundary is not None and not boundary["distinct_processes"]:
        found = "a rank's process is one of those that wrote the boundary"
        yield _fault(file, "/boundary/distinct_processes", found, "a new process on every rank")


def _fault(file: str, pointer: str, found: str, expected: str) -> Fault:
    return Fault(
        gate=GATE,
        file=file,
        pointer=pointer,
        found=found,
        expected=expected,
        fix=DEFECT,
        exit_code=ExitCode.INTERNAL,
    )


def write_audit(run: Path, manifest: LaunchManifest, document: dict[str, Any]) -> None:
    """Record an audit, passed or not.

    Raises:
        OSError: If it cannot be written.
    """
    path = run / audit_file(manifest)
    path.parent.mkdir(exist_ok=True)
    write_json(path, document)


def read_audits(run: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """Return a run's audits: path relative to the run directory, SHA-256 of the bytes, document; by time of writing.

    Raises:
        Refusal: If one breaks its schema.
        OSError: If one cannot be read.
    """
    found = []
    for path in sorted((run / AUDIT_FOLDER).glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name)):
        document: dict[str, Any] = load_json(path, gate=GATE)
        if faults := validate(document, "resume-audit", gate=GATE, file=str(path)):
            raise Refusal(faults)
        found.append((path.relative_to(run).as_posix(), sha256_file(path), document))
    return found
