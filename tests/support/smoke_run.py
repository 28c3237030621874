"""Smoke runs that are about to finish, made of real files by the code that real runs use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.files.schema import load_schema
from explicit_learning.rundir.resume_audit import RankAudit, audit_of, compare_components, write_audit
from explicit_learning.rundir.smoke_boundary import RankBoundary, prove_boundary, write_boundary
from tests.support.finished_run import Run

if TYPE_CHECKING:
    from pathlib import Path

COMPONENTS: dict[str, str | None] = {
    name: None if name in {"reference_adapter", "random_cuda"} else "0" * 64
    for name in load_schema("state-digests")["properties"]["components"]["properties"]
}

SMOKE = {"run_mode": "smoke", "optimisation__max_steps": 6}
SMOKE_REPORT = {"optimizer_steps": 6, "sampled_tokens": 264, "completions": 48}


def smoke_run(folder: Path, document: dict[str, Any]) -> Run:
    """Return a smoke run whose second launch is about to start: it stopped at step 5, with its boundary."""
    run = Run.of(folder, document)
    run.prepare()
    frontiers = [] if run.is_sft else run.sample(range(5))
    ranks = [
        RankBoundary(
            rank=rank,
            process_nonce=f"{rank}" * 32,
            peak_memory_bytes=1000,
            ledger=frontiers[rank].ledger if frontiers else None,
            trace=frontiers[rank].trace if frontiers else None,
            components=COMPONENTS,
        )
        for rank in (0, 1)
    ]
    write_boundary(run.launch_manifest(), ranks, checkpoint="checkpoint-5", step=5)
    run.checkpoint(5, frontiers)
    assert run.prepare().checkpoint == "checkpoint-5"
    if frontiers:
        run.sample(range(5, 6), frontiers=frontiers)
    return run


def audit(run: Run, *, nonce: str = "a", **as_loaded: str) -> None:
    manifest = run.launch_manifest()
    ranks = [
        RankAudit(
            rank=rank,
            process_nonce=(nonce if rank == 0 else "b") * 32,
            loaders_called=("default",),
            loaders_missing=(),
            components=compare_components(COMPONENTS, COMPONENTS | as_loaded if rank == 1 else COMPONENTS),
        )
        for rank in (0, 1)
    ]
    proof = prove_boundary(manifest, [rank.process_nonce for rank in ranks])
    write_audit(run.folder, audit_of(manifest, ranks, proof, step=5))
