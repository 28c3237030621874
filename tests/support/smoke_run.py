"""Smoke runs that are about to finish, made of real files by the code that real runs use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode
from explicit_learning.files.jsonl import write_rows
from explicit_learning.files.schema import load_schema
from explicit_learning.rundir.layout import METRICS, UNINTERRUPTED
from explicit_learning.rundir.resume_audit import (
    RankAudit,
    audit_of,
    compare_components,
    required_loaders,
    write_audit,
)
from explicit_learning.rundir.smoke_boundary import RankBoundary, prove_boundary, write_boundary
from tests.support.finished_run import Run

if TYPE_CHECKING:
    from explicit_learning.completion.launch_end import LaunchEnd
    from explicit_learning.rundir.launch_manifest import LaunchManifest

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
            loaders_called=tuple(required_loaders(reference=False)),
            loaders_missing=(),
            components=compare_components(COMPONENTS, COMPONENTS | as_loaded if rank == 1 else COMPONENTS),
        )
        for rank in (0, 1)
    ]
    proof = prove_boundary(manifest, [rank.process_nonce for rank in ranks])
    write_audit(run.folder, audit_of(manifest, ranks, proof, step=5))


def rows_of_metrics(steps: int = 6) -> list[dict[str, Any]]:
    """Return what a run logs, one row for each step."""
    return [{"step": step, "loss": 1 / step, "grad_norm": 0.25, "reward": None} for step in range(1, steps + 1)]


def complete_smoke_run(folder: Path, document: dict[str, Any]) -> Run:
    """Return a smoke run that was stopped, resumed and completed."""
    run = smoke_run(folder, document)
    audit(run)
    write_rows(run.folder / METRICS, rows_of_metrics())
    assert end_launch(run, run.launch_manifest()).exit_code == ExitCode.DONE
    return run


def uninterrupted_run(compared: Run) -> Run:
    """Return the uninterrupted run of a complete smoke run's plan, whose ranks have ended."""
    run = Run(folder=compared.folder / UNINTERRUPTED, plan=compared.plan, plan_bytes=compared.plan_bytes, launches=10)
    assert run.prepare().action == "fresh"
    if not run.is_sft:
        run.sample(range(6))
    write_rows(run.folder / METRICS, rows_of_metrics())
    manifest = replace(run.launch_manifest(), uninterrupted=True)
    assert end_launch(run, manifest).exit_code == ExitCode.DONE
    Path(manifest.paths.dataset).unlink()  # beside this run, and so inside the other
    return run


def end_launch(run: Run, manifest: LaunchManifest) -> LaunchEnd:
    """End a launch whose ranks have reached step 6."""
    report = {"optimizer_steps": 6} if run.is_sft else SMOKE_REPORT
    return after_ranks(manifest, run.completed(run.reports(run.save_adapter(), **report)))
