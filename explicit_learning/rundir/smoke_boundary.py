"""The boundary of a smoke run: where its first process stopped, and what the second one must find.

A smoke run shows that a run can be interrupted. It would show nothing if one process trained it through, or if the
second began somewhere else; so the first leaves this file *before* its checkpoint becomes complete, and a complete
``checkpoint-5`` of a smoke run therefore always has one. Processes are told apart by random names, because a process
id may be the same in two containers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Fault, Refusal, found_text
from explicit_learning.files.atomic import write_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from explicit_learning.accounting.frontier import RankFrontiers
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.state_digests import Components

__all__ = ["BOUNDARY_NAME", "BoundaryProof", "RankBoundary", "prove_boundary", "read_boundary", "write_boundary"]

GATE = "smoke"
BOUNDARY_NAME = "smoke-resume-boundary.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBoundary:
    """One rank at the boundary.

    Attributes:
        rank: The rank.
        process_nonce: Random name of its process.
        peak_memory_bytes: Highest memory so far.
        frontiers: Where its ledger and trace stand; ``None`` in SFT arms.
        components: Digests of its live state.
    """

    rank: int
    process_nonce: str
    peak_memory_bytes: int
    frontiers: RankFrontiers | None
    components: Components

    def to_json(self) -> dict[str, Any]:
        """Return the rank's entry of the boundary file."""
        return {
            "rank": self.rank,
            "process_nonce": self.process_nonce,
            "peak_memory_bytes": self.peak_memory_bytes,
            "ledger": self.frontiers.ledger.to_json() if self.frontiers else None,
            "trace": self.frontiers.trace.to_json() if self.frontiers else None,
            "components": self.components,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryProof:
    """What an audit says about the boundary file.

    Attributes:
        file_sha256: SHA-256 of its bytes.
        process_nonces: The processes that wrote it, by rank.
        distinct_processes: Whether all of the resuming processes are others.
    """

    file_sha256: str
    process_nonces: tuple[str, ...]
    distinct_processes: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as it stands in the audit."""
        return {
            "file_sha256": self.file_sha256,
            "process_nonces": list(self.process_nonces),
            "distinct_processes": self.distinct_processes,
        }


def write_boundary(manifest: LaunchManifest, ranks: Sequence[RankBoundary], *, checkpoint: str, step: int) -> None:
    """Write the boundary file of a smoke run; rank 0 does, before it seals the checkpoint.

    Raises:
        OSError: If it cannot be written.
    """
    run, plan = manifest.run, manifest.plan
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "smoke-resume-boundary",
        "status": "stopped",
        "run_id": plan.run_id,
        "launch_id": manifest.launch_id,
        "frozen_config_sha256": plan.frozen_config_sha256,
        "run_manifest_sha256": manifest.run_manifest_sha256,
        "plan_sha256": sha256_file(run / "plan.json"),
        "checkpoint": checkpoint,
        "step": step,
        "ranks": [rank.to_json() for rank in ranks],
    }
    write_json(run / BOUNDARY_NAME, document)


def read_boundary(run: Path) -> dict[str, Any]:
    """Return a smoke run's boundary file.

    Raises:
        Refusal: If it is missing or breaks its schema.
    """
    path = run / BOUNDARY_NAME
    document: dict[str, Any] = load_json(path, gate=GATE)
    if faults := validate(document, "smoke-resume-boundary", gate=GATE, file=str(path)):
        raise Refusal(faults)
    return document


def prove_boundary(manifest: LaunchManifest, process_nonces: Iterable[str]) -> BoundaryProof:
    """Hold the processes that resume a smoke run against its boundary.

    Args:
        manifest: The launch manifest of the resuming launch.
        process_nonces: Random names of its ranks' processes.

    Raises:
        Refusal: If the boundary is missing, is another run's, or names another checkpoint than the one resumed.
    """
    document, path = read_boundary(manifest.run), manifest.run / BOUNDARY_NAME
    expected = {
        "frozen_config_sha256": manifest.plan.frozen_config_sha256,
        "run_manifest_sha256": manifest.run_manifest_sha256,
        "checkpoint": manifest.resume_checkpoint,
    }
    if faults := [
        Fault(
            gate=GATE,
            file=str(path),
            pointer=f"/{name}",
            found=found_text(document[name]),
            expected=found_text(value),
            fix="this boundary is not the resumed checkpoint's: begin the smoke run anew (--out)",
        )
        for name, value in expected.items()
        if document[name] != value
    ]:
        raise Refusal(faults)
    first = tuple(rank["process_nonce"] for rank in document["ranks"])
    distinct = not set(first) & set(process_nonces)
    return BoundaryProof(file_sha256=sha256_file(path), process_nonces=first, distinct_processes=distinct)
