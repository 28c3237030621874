"""Building the completion marker of a run that reached its last step and keeps all completion rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.accounting.set_aside import discarded
from explicit_learning.completion.launches import differences, launch_entries, machines_of
from explicit_learning.completion.smoke_proof import resume_probe
from explicit_learning.completion.validation import validated
from explicit_learning.files.hashing import sha256_file, snapshot
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import field_names, to_json
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoint_mark import read_mark
from explicit_learning.rundir.checkpoints import complete_checkpoints
from explicit_learning.rundir.completion_marker import (
    CheckpointEntry,
    CompletionMarker,
    Compute,
    Counts,
    FinalAdapter,
    MarkerIdentities,
    Memory,
    Parameters,
    ValidationCompute,
)
from explicit_learning.rundir.rank_report import RankReport
from explicit_learning.rundir.run_manifest import PlanIdentities

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.accounting.set_aside import Discarded
    from explicit_learning.completion.recount import RankRecount
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.launches import CodeIdentity, Launch, RankEnd
    from explicit_learning.rundir.run_manifest import RunManifest

__all__ = [
    "UNCHANGED",
    "FinishedRun",
    "LaunchSums",
    "LaunchTotals",
    "add_up_launches",
    "build_marker",
    "count_run",
    "last_values",
    "measured_ends",
    "sampled_counts",
    "sums_of",
]

UNCHANGED = "the final adapter equals the initial one: this run trained nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run that reached its last step, as its files and its ranks describe it.

    Attributes:
        run: The run directory.
        plan: The plan.
        run_manifest: The run manifest.
        recounts: Each rank's ledger and trace, counted; none in SFT arms.
        reports: What each rank measured, by rank.
        adapter_tensors_sha256: Tensor digest of the final adapter's file.
        launches: The run's launches; the last is the one that finished it.
    """

    run: Path
    plan: Plan
    run_manifest: RunManifest
    recounts: Sequence[RankRecount]
    reports: Sequence[RankReport]
    adapter_tensors_sha256: str
    launches: Sequence[Launch]

    @property
    def code(self) -> CodeIdentity:
        """The code that finished the run."""
        return self.launches[-1].start.nodes[0].code

    @property
    def unchanged(self) -> bool:
        """Whether the final adapter's tensors are those of the initial one."""
        return self.adapter_tensors_sha256 == self.reports[0].initial_adapter_tensors_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTotals:
    """What the launches of a run needed together; ``measured`` of them lived to report memory and time."""

    measured: int
    memory: Memory
    compute: Compute


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSums:
    """Memory and time of a run's launches.

    Attributes:
        measured: How many launches were measured.
        memory: The most that each rank needed in any of them.
        device_seconds: Seconds of all launches and ranks.
        runtime_seconds: Seconds of all launches, each as long as its slowest rank took.
        validation_seconds: Seconds of all launches and ranks in validation.
    """

    measured: int
    memory: Memory
    device_seconds: float
    runtime_seconds: float
    validation_seconds: float


def build_marker(finished: FinishedRun, counts: Counts, totals: LaunchTotals) -> CompletionMarker:
    """Return the marker of a run whose final adapter has its model card.

    Args:
        finished: The run.
        counts: What `count_run` counted.
        totals: What `add_up_launches` added up.

    Raises:
        Refusal: If a checkpoint's mark or a resume audit cannot be read.
        OSError: If a file cannot be read.
    """
    run, plan, first = finished.run, finished.plan, finished.reports[0]
    machines = machines_of(finished.launches)
    return CompletionMarker(
        trained=plan.run_mode == "main",
        run_id=plan.run_id,
        run_mode=plan.run_mode,
        arm=plan.arm,
        seed=plan.seed,
        data_seed=plan.data_seed,
        identities=_identities(finished),
        counts=counts,
        accounting=tuple(recount.frontiers for recount in finished.recounts),
        checkpoints=tuple(_checkpoint(run, name) for name in complete_checkpoints(run)),
        adapter=FinalAdapter(
            files=snapshot(run / layout.FINAL_ADAPTER),
            tensors_sha256=finished.adapter_tensors_sha256,
            unchanged=finished.unchanged,
        ),
        parameters=Parameters.of(first.trainable_parameters),
        reward=to_json(plan.reward),
        objective=to_json(plan.objective),
        loss_terms=first.loss_terms,
        unchanged_adapter_steps=first.unchanged_adapter_steps,
        zero_gradient_steps=first.zero_gradient_steps,
        launches=launch_entries(finished.launches, steps=counts.optimizer_steps, measured=totals.measured),
        machines=machines,
        differences=differences(machines),
        gpus=tuple(report.gpu for report in finished.reports),
        sampler_agreement=first.sampler_agreement,
        rollouts=first.rollouts,
        kernel_checks=first.kernel_checks,
        layer_functions=first.layer_functions,
        resume_probe=resume_probe(run),
        memory=totals.memory,
        compute=totals.compute,
        metrics=last_values(first.log_history),
        log_history=first.log_history,
        validation=validated(plan, first.log_history),
    )


def count_run(finished: FinishedRun) -> Counts:
    """Return the marker's counts.

    Raises:
        OSError: If what was set aside cannot be read.
    """
    budget, first, recounts = finished.plan.budget, finished.reports[0], finished.recounts
    sampled = sampled_counts(recounts, discarded(FolderTree(finished.run)))
    return Counts(
        optimizer_steps=first.optimizer_steps,
        records=first.records,
        records_left_out=first.records_left_out,
        sft_loss_tokens=first.sft_loss_tokens,
        sft_loss_token_ceiling=budget.max_sft_loss_tokens,
        sampled_token_ceiling=budget.max_completion_tokens_per_run,
        **sampled,
    )


def sampled_counts(recounts: Sequence[RankRecount], lost: Discarded) -> dict[str, Any]:
    """Return the marker's counts that follow from ledgers and traces, under their names in `Counts`.

    All are ``None`` in SFT arms, which sample nothing.

    Args:
        recounts: Each rank's ledger and trace, counted, by rank; none in SFT arms.
        lost: What was set aside.
    """
    sampled: dict[str, Any] = {
        "sampled_tokens": sum(recount.tokens for recount in recounts),
        "completions": sum(recount.rows for recount in recounts),
        "unique_prompt_groups": len({group for recount in recounts for group in recount.groups}),
        "zero_variance_groups": sum(recount.zero_variance_groups for recount in recounts),
        "malformed": sum(recount.malformed for recount in recounts),
        "malformed_by_rank": tuple(recount.malformed for recount in recounts),
        "truncated": sum(recount.truncated for recount in recounts),
        "truncated_by_rank": tuple(recount.truncated for recount in recounts),
        "discarded_completions": lost.completions,
        "discarded_tokens": lost.tokens,
    }
    return sampled if recounts else dict.fromkeys(sampled)


def last_values(log: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the last logged value of each of the trainer's metrics."""
    return {
        name: value
        for entry in log
        for name, value in entry.items()
        if value is None or isinstance(value, (bool, int, float, str))
    }


def _identities(finished: FinishedRun) -> MarkerIdentities:
    first, frozen = finished.reports[0], finished.run_manifest.frozen
    return MarkerIdentities(
        **_fields(frozen.identities),
        plan_sha256=frozen.plan_sha256,
        frozen_config_sha256=frozen.frozen_config_sha256,
        run_manifest_sha256=finished.run_manifest.run_manifest_sha256,
        base_weights_sha256=first.base_weights_after_sha256,
        initial_adapter_tensors_sha256=first.initial_adapter_tensors_sha256,
        final_adapter_tensors_sha256=first.final_adapter_tensors_sha256,
        frozen_commit=frozen.frozen_commit,
        frozen_dirty=frozen.frozen_dirty,
        running_commit=finished.code.commit,
        running_dirty=finished.code.dirty,
    )


def _fields(value: PlanIdentities) -> dict[str, Any]:
    """Return a dataclass's fields as they are, without looking into them."""
    return {name: getattr(value, name) for name in field_names(PlanIdentities)}


def _checkpoint(run: Path, name: str) -> CheckpointEntry:
    mark = read_mark(run / name)
    return CheckpointEntry(
        name=name,
        step=mark.step,
        mark_sha256=sha256_file(run / name / layout.CHECKPOINT_MARK),
        files={file: entry.sha256 for file, entry in mark.files.items()},
    )


def add_up_launches(finished: FinishedRun) -> LaunchTotals:
    """Add up what earlier launches measured, which is in their end records, and the one that has just ended."""
    reports = finished.reports
    sums = sums_of([*measured_ends(finished.launches, len(reports)), reports])
    return LaunchTotals(
        measured=sums.measured,
        memory=sums.memory,
        compute=Compute(
            forwards=sum(report.forwards for report in reports),
            sampling_forwards=sum(report.sampling_forwards or 0 for report in reports)
            if finished.plan.samples
            else None,
            scored_tokens=sum(report.scored_tokens for report in reports),
            device_seconds=sums.device_seconds,
            runtime_seconds=sums.runtime_seconds,
            validation=_validation_compute(reports, sums),
        ),
    )


def _validation_compute(reports: Sequence[RankReport], sums: LaunchSums) -> ValidationCompute | None:
    costs = [report.validation for report in reports if report.validation is not None]
    if not costs:
        return None
    return ValidationCompute(
        forwards=sum(cost.forwards for cost in costs),
        sampled_tokens=sum(cost.tokens for cost in costs),
        device_seconds=sums.validation_seconds,
    )


def measured_ends(launches: Sequence[Launch], ranks: int) -> list[Sequence[RankEnd | RankReport]]:
    """Return how the ranks of each launch ended, of those launches in which every rank measured itself.

    Args:
        launches: Launches of a run, in order.
        ranks: The run's number of ranks.
    """
    return [
        launch.end.ranks
        for launch in launches
        if launch.end and len(launch.end.ranks) == ranks and all(rank.peak_memory_bytes for rank in launch.end.ranks)
    ]


def sums_of(measured: Sequence[Sequence[RankEnd | RankReport]]) -> LaunchSums:
    """Add up what the ranks of a run's launches measured, launch by launch in order, at least one."""
    by_rank = list(zip(*measured, strict=True))
    seconds = [[part.device_seconds or 0.0 for part in ranks] for ranks in measured]
    return LaunchSums(
        measured=len(measured),
        memory=Memory(
            peak_bytes_by_rank=tuple(max(part.peak_memory_bytes or 0 for part in rank) for rank in by_rank),
            peak_reserved_bytes_by_rank=tuple(
                max(filter(None, (part.peak_reserved_bytes for part in rank)), default=None) for rank in by_rank
            ),
        ),
        device_seconds=sum(map(sum, seconds)),
        runtime_seconds=sum(map(max, seconds)),
        validation_seconds=sum(_validation_seconds(part) for ranks in measured for part in ranks),
    )


def _validation_seconds(part: RankEnd | RankReport) -> float:
    """Return how long a rank validated in a launch: a launch that has ended tells it among its phases."""
    if isinstance(part, RankReport):
        return part.validation.seconds if part.validation else 0.0
    use = (part.phases or {}).get("validation")
    return use.seconds if use else 0.0
