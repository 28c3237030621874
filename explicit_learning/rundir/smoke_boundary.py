"""The boundary of a smoke run: where its first process stopped, and what the second one must find.

A smoke run shows that a run can be interrupted. It would show nothing if one process trained it through, or if the
second started somewhere else; so the first leaves this file *before* its checkpoint becomes complete, and a complete
``checkpoint-5`` of a smoke run therefore always has one. Processes are told apart by random names, because a process
id may be the same in two containers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.accounting.frontier import Frontier  # noqa: TC001 - read at run time
from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.typed_json import RESTORE, document, read_document, write_document
from explicit_learning.rundir import layout
from explicit_learning.rundir.state_digests import Components  # noqa: TC001 - read at run time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from explicit_learning.rundir.launch_manifest import LaunchManifest

__all__ = ["BoundaryProof", "RankBoundary", "SmokeBoundary", "prove_boundary", "read_boundary", "write_boundary"]

GATE = "smoke"
CONTEXT = Context(
    gate=GATE, fix="start the smoke run again (--out): this boundary belongs to another checkpoint or run"
)
SCHEMA_VERSION = 1
KIND = "smoke-resume-boundary"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBoundary:
    """One rank at the boundary.

    Attributes:
        rank: The rank.
        process_nonce: Random name of its process.
        peak_memory_bytes: Highest memory so far.
        ledger: Where its ledger stands; ``None`` in SFT arms.
        trace: Where its trace stands; ``None`` in SFT arms.
        components: Digests of its live state.
    """

    rank: int
    process_nonce: str
    peak_memory_bytes: int
    ledger: Frontier | None
    trace: Frontier | None
    components: Components


@document("smoke-resume-boundary")
@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeBoundary:
    """The whole file: the launch that stopped, its checkpoint, and every rank in it."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    status: str = "stopped"
    run_id: str
    launch_id: str
    frozen_config_sha256: str
    run_manifest_sha256: str
    plan_sha256: str
    checkpoint: str
    step: int
    ranks: tuple[RankBoundary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryProof:
    """What an audit records about the boundary file.

    Attributes:
        file_sha256: SHA-256 of its bytes.
        process_nonces: The processes that wrote it, by rank.
        distinct_processes: Whether all of the resuming processes are others.
    """

    file_sha256: str
    process_nonces: tuple[str, ...]
    distinct_processes: bool


def write_boundary(manifest: LaunchManifest, ranks: Sequence[RankBoundary], *, checkpoint: str, step: int) -> None:
    """Write the boundary file of a smoke run; rank 0 does, before it seals the checkpoint.

    Raises:
        Refusal: If it breaks its schema (exit code 70).
        OSError: If it cannot be written.
    """
    run, plan = manifest.run, manifest.plan
    boundary = SmokeBoundary(
        run_id=plan.run_id,
        launch_id=manifest.launch_id,
        frozen_config_sha256=plan.frozen_config_sha256,
        run_manifest_sha256=manifest.run_manifest_sha256,
        plan_sha256=sha256_file(run / layout.PLAN),
        checkpoint=checkpoint,
        step=step,
        ranks=tuple(ranks),
    )
    write_document(run / layout.SMOKE_BOUNDARY, boundary, gate=GATE)


def read_boundary(run: Path) -> SmokeBoundary:
    """Return a smoke run's boundary file.

    Raises:
        Refusal: If it is missing or breaks its schema.
    """
    return read_document(run / layout.SMOKE_BOUNDARY, SmokeBoundary, gate=GATE, fix=RESTORE)


def prove_boundary(manifest: LaunchManifest, process_nonces: Iterable[str]) -> BoundaryProof:
    """Compare the processes that resume a smoke run with those that wrote its boundary.

    Args:
        manifest: The launch manifest of the resuming launch.
        process_nonces: Random names of its ranks' processes.

    Raises:
        Refusal: If the boundary is missing, is another run's, or names another checkpoint than the one resumed.
    """
    boundary, path = read_boundary(manifest.run), manifest.run / layout.SMOKE_BOUNDARY
    expected = {
        "frozen_config_sha256": manifest.plan.frozen_config_sha256,
        "run_manifest_sha256": manifest.run_manifest_sha256,
        "checkpoint": manifest.resume_checkpoint,
    }
    context = CONTEXT.at(path)
    if faults := [
        context.fault(pointer=f"/{name}", found=found_text(found), expected=found_text(value))
        for name, value in expected.items()
        if (found := getattr(boundary, name)) != value
    ]:
        raise Refusal(faults)
    first = tuple(rank.process_nonce for rank in boundary.ranks)
    distinct = not set(first) & set(process_nonces)
    return BoundaryProof(file_sha256=sha256_file(path), process_nonces=first, distinct_processes=distinct)
