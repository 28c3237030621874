"""A run whose ranks reached the last step, as its files and its ranks' reports describe it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.completion.marker import FinishedRun
from explicit_learning.completion.recount import recount_rank
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.tree import FolderTree
from explicit_learning.inputs.frozen_rows import read_frozen_slots
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.rundir import layout
from explicit_learning.rundir.launches import read_launches
from explicit_learning.rundir.owner import OTHER_FOLDER
from explicit_learning.rundir.run_manifest import changed_plan_faults, read_run_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.completion.recount import RankRecount
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.launches import Launch
    from explicit_learning.rundir.outcome import RankOutcome
    from explicit_learning.rundir.rank_report import RankReport
    from explicit_learning.rundir.run_manifest import RunManifest

__all__ = ["read_finished_run"]

CONTEXT = Context(gate="completion")


def read_finished_run(manifest: LaunchManifest, outcomes: Sequence[RankOutcome]) -> FinishedRun:
    """Return a run whose ranks reached the last step.

    Args:
        manifest: The launch manifest of the launch that reached it.
        outcomes: Each rank's outcome, by rank.

    Raises:
        Refusal: If a report, the adapter or the launch's record is missing, a ledger or trace cannot be read, or the
            run manifest or the plan was changed during the run.
        OSError: If a file cannot be read.
    """
    run, plan = manifest.run, manifest.plan
    return FinishedRun(
        run=run,
        plan=plan,
        run_manifest=_unchanged_manifest(manifest),
        recounts=_recounts(manifest) if plan.samples else [],
        reports=_reports(outcomes),
        adapter_tensors_sha256=_adapter_tensors(run),
        launches=_launches(manifest),
    )


def _recounts(manifest: LaunchManifest) -> list[RankRecount]:
    """Return the recount of each rank of an RL run."""
    tree, plan = FolderTree(manifest.run), manifest.plan
    base_ids = {slot.slot_id: slot.base_id for slot in read_frozen_slots(Path(manifest.paths.dataset), plan)}
    return [recount_rank(tree, plan, rank, base_ids=base_ids) for rank in range(plan.hardware.world_size)]


def _unchanged_manifest(manifest: LaunchManifest) -> RunManifest:
    """Return the run manifest, if it and the plan are still those that the ranks were started with."""
    found, expected = read_run_manifest(manifest.run), manifest.run_manifest_sha256
    if found.run_manifest_sha256 != expected:
        raise CONTEXT.refusal(
            file=manifest.run / layout.RUN_MANIFEST,
            found=found.run_manifest_sha256,
            expected=expected,
            fix=f"restore {layout.RUN_MANIFEST} from a copy: it was changed during the run; or {OTHER_FOLDER}",
        )
    if faults := changed_plan_faults(manifest.run, found):
        raise Refusal(faults)
    return found


def _launches(manifest: LaunchManifest) -> tuple[Launch, ...]:
    """Return the run's launches, if the last is the one that the ranks belong to."""
    launches = read_launches(manifest.run)
    if not launches or launches[-1].start.launch_id != manifest.launch_id:
        raise CONTEXT.refusal(
            file=manifest.run / layout.LAUNCHES,
            found=f"no record of the launch {manifest.launch_id}, which completed the run, as the last",
            expected="a record of every launch",
            fix=f"restore the folder {layout.LAUNCHES}/ from a copy: it was changed during the run; or {OTHER_FOLDER}",
        )
    return launches


def _reports(outcomes: Sequence[RankOutcome]) -> list[RankReport]:
    """Return what every rank measured."""
    reports = [outcome.report for outcome in outcomes if outcome.report is not None]
    if len(reports) < len(outcomes):
        missing = [rank for rank, outcome in enumerate(outcomes) if outcome.report is None]
        raise CONTEXT.refusal(
            found=f"no report of ranks {missing}, which completed the run",
            expected="a report of every rank",
            fix="report this as a defect (CONTRIBUTING.md says where): the trainer must measure before it returns",
            exit_code=ExitCode.INTERNAL,
        )
    return reports


def _adapter_tensors(run: Path) -> str:
    path = run / layout.FINAL_ADAPTER / layout.ADAPTER_WEIGHTS
    if not path.is_file():
        raise CONTEXT.refusal(
            file=path,
            found="no such file",
            expected="the final adapter",
            fix="report this as a defect (CONTRIBUTING.md says where): the trainer must save it before it returns",
            exit_code=ExitCode.INTERNAL,
        )
    return file_tensors_sha256(path)
