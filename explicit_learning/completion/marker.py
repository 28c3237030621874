"""The completion marker: what a complete run was made of, and what it did.

It is written once, after everything it speaks of. Every number in it is counted from the run's own files or was
measured by the ranks; what does not apply to an arm is null, and nothing is a constant.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from explicit_learning.accounting.set_aside import discarded
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.atomic import write_json
from explicit_learning.files.hashing import sha256_file, snapshot
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json
from explicit_learning.rundir.checkpoints import COMPLETE_MARK, complete_checkpoints, read_mark
from explicit_learning.rundir.run_manifest import plan_identities

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.completion.recount import RankTally
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.rank_report import TrainingFacts

__all__ = [
    "ADAPTER_FOLDER",
    "ADAPTER_WEIGHTS",
    "MARKER_NAME",
    "Launches",
    "build_marker",
    "count_launches",
    "count_run",
    "last_values",
    "read_marker",
    "write_marker",
]

GATE = "completion"
MARKER_NAME = "training-complete.json"
ADAPTER_FOLDER = "final-adapter"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What all of a run's launches together needed, from the event log and the ranks that have just ended.

    Attributes:
        count: Launches.
        resumed_from: Checkpoint of each launch after the first; ``None`` for a restart from the seed.
        measured: Launches that lived to report memory and time.
        peak_bytes_by_rank: Highest memory of each rank over the measured launches.
        device_seconds: Time in training, summed over ranks and measured launches.
    """

    count: int
    resumed_from: tuple[str | None, ...]
    measured: int
    peak_bytes_by_rank: tuple[int, ...]
    device_seconds: float


def count_launches(events: Sequence[dict[str, Any]], facts: Sequence[TrainingFacts]) -> Launches:
    """Add up the launches that the event log tells of and the one whose facts are given.

    Args:
        events: The run's events so far; those of kind ``exit`` hold earlier launches' measurements under ``ranks``.
        facts: What each rank measured in the launch that has just ended.
    """
    starts = [event["data"].get("checkpoint") for event in events if event["kind"] == "launch"]
    earlier = [event["data"].get("ranks", []) for event in events if event["kind"] == "exit"]
    measured = [
        ranks for ranks in earlier if len(ranks) == len(facts) and all(rank.get("peak_memory_bytes") for rank in ranks)
    ]
    peaks = [[rank["peak_memory_bytes"] for rank in ranks] for ranks in measured]
    peaks.append([fact.peak_memory_bytes for fact in facts])
    seconds = sum(rank.get("device_seconds") or 0.0 for ranks in measured for rank in ranks)
    return Launches(
        count=max(1, len(starts)),
        resumed_from=tuple(starts[1:]),
        measured=len(peaks),
        peak_bytes_by_rank=tuple(map(max, zip(*peaks, strict=True))),
        device_seconds=seconds + sum(fact.device_seconds for fact in facts),
    )


def build_marker(
    run: Path,
    plan: Plan,
    run_manifest: dict[str, Any],
    *,
    tallies: Sequence[RankTally],
    facts: Sequence[TrainingFacts],
    launches: Launches,
    probe: dict[str, Any] | None,
    counts: dict[str, int | None],
    adapter_tensors_sha256: str,
    running_commit: str,
) -> dict[str, Any]:
    """Return the marker of a run that keeps all completion rules.

    Args:
        run: The run directory, with the final adapter and its model card.
        plan: The plan.
        run_manifest: The run manifest.
        tallies: What each rank's ledger and trace say; none in SFT arms.
        facts: What each rank measured, by rank.
        launches: What all launches needed.
        probe: What resume audits proved, if there were any (see `probe.resume_probe`).
        counts: What `count_run` counted.
        adapter_tensors_sha256: Tensor digest of the final adapter's file.
        running_commit: Git commit of the code that finished the run.

    Raises:
        Refusal: If a checkpoint's mark cannot be read.
        OSError: If a file cannot be read.
    """
    first, frozen = facts[0], run_manifest["frozen"]
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "completed",
        "trained": plan.run_mode == "main",
        "run_id": plan.run_id,
        "run_mode": plan.run_mode,
        "arm": plan.arm,
        "seed": plan.seed,
        "data_seed": plan.data_seed,
        "identities": {
            "plan_sha256": frozen["plan_sha256"],
            "frozen_config_sha256": plan.frozen_config_sha256,
            "run_manifest_sha256": run_manifest["run_manifest_sha256"],
            **plan_identities(plan),
            "base_weights_sha256": first.base_weights_after_sha256,
            "initial_adapter_tensors_sha256": first.initial_adapter_tensors_sha256,
            "final_adapter_tensors_sha256": first.final_adapter_tensors_sha256,
            "frozen_commit": frozen["frozen_commit"],
            "frozen_dirty": frozen["frozen_dirty"],
            "running_commit": running_commit,
            "image": frozen["image"],
            "hardware": frozen["hardware"],
        },
        "counts": counts,
        "accounting": [tally.frontiers.to_json() for tally in tallies],
        "checkpoints": [_checkpoint(run, name) for name in complete_checkpoints(run)],
        "adapter": {"files": snapshot(run / ADAPTER_FOLDER), "tensors_sha256": adapter_tensors_sha256},
        "parameters": {
            "trainable": first.trainable_parameters,
            "names_sha256": first.trainable_parameter_names_sha256,
        },
        "reward": asdict(plan.reward) if plan.reward else None,
        "objective": asdict(plan.objective) if plan.objective else None,
        "loss_terms": {name: asdict(term) for name, term in first.loss_terms.items()},
        "unchanged_adapter_steps": list(first.unchanged_adapter_steps),
        "zero_gradient_steps": list(first.zero_gradient_steps),
        "launches": {
            "count": launches.count,
            "resumed_from": list(launches.resumed_from),
            "measured": launches.measured,
        },
        "resume_probe": probe,
        "memory": {"peak_bytes_by_rank": list(launches.peak_bytes_by_rank)},
        "compute": {"device_seconds": launches.device_seconds},
        "metrics": last_values(first.log_history),
        "log_history": list(first.log_history),
    }


def write_marker(run: Path, marker: dict[str, Any]) -> str:
    """Write a marker, whole or not at all, and return the SHA-256 of its bytes.

    Raises:
        Refusal: If it breaks its schema (exit code 70): a record that readers refuse is no record.
        OSError: If it cannot be written.
    """
    path = run / MARKER_NAME
    if faults := validate(marker, "completion-marker", gate=GATE, file=str(path)):
        fix = "report this as a defect, with the run directory"
        raise Refusal(replace(fault, fix=fix, exit_code=ExitCode.INTERNAL) for fault in faults)
    write_json(path, marker)
    return sha256_file(path)


def read_marker(run: Path) -> tuple[dict[str, Any], str]:
    """Return a run's marker and the SHA-256 of its bytes.

    Raises:
        Refusal: If it is missing, no strict JSON, or breaks its schema.
    """
    path = run / MARKER_NAME
    marker: dict[str, Any] = load_json(path, gate=GATE)
    if faults := validate(marker, "completion-marker", gate=GATE, file=str(path)):
        raise Refusal(faults)
    return marker, hashlib.sha256(path.read_bytes()).hexdigest()


def count_run(run: Path, plan: Plan, tallies: Sequence[RankTally], facts: TrainingFacts) -> dict[str, int | None]:
    """Return the marker's counts; ``None`` where one does not apply to the arm.

    Args:
        run: The run directory.
        plan: The plan.
        tallies: What each rank's ledger and trace say; none in SFT arms.
        facts: What rank 0 measured.

    Raises:
        OSError: If what was set aside cannot be read.
    """
    counts: dict[str, int | None] = {
        "optimizer_steps": facts.optimizer_steps,
        "records": facts.records,
        "sft_loss_tokens": facts.sft_loss_tokens,
        "sft_loss_token_ceiling": plan.budget.max_sft_loss_tokens,
        "sampled_tokens": None,
        "sampled_token_ceiling": plan.budget.max_completion_tokens_per_run,
        "completions": None,
        "unique_prompt_groups": None,
        "zero_variance_groups": None,
        "malformed": None,
        "truncated": None,
        "discarded_completions": None,
        "discarded_tokens": None,
    }
    if tallies:
        lost = discarded(run)
        counts |= {
            "sampled_tokens": sum(tally.tokens for tally in tallies),
            "completions": sum(tally.rows for tally in tallies),
            "unique_prompt_groups": len(set().union(*(tally.groups for tally in tallies))),
            "zero_variance_groups": sum(tally.zero_variance_groups for tally in tallies),
            "malformed": sum(tally.malformed for tally in tallies),
            "truncated": sum(tally.truncated for tally in tallies),
            "discarded_completions": lost.completions,
            "discarded_tokens": lost.tokens,
        }
    return counts


def _checkpoint(run: Path, name: str) -> dict[str, Any]:
    mark = read_mark(run / name)
    return {
        "name": name,
        "step": mark.step,
        "mark_sha256": sha256_file(run / name / COMPLETE_MARK),
        "files": {file: sha256 for file, (_, sha256) in mark.files.items()},
    }


def last_values(log: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the last logged value of each of the trainer's metrics."""
    return {
        name: value
        for entry in log
        for name, value in entry.items()
        if value is None or isinstance(value, (bool, int, float, str))
    }
