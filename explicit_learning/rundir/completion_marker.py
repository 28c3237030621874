"""The completion marker: what a complete run was made of, and what it did.

It is written once, after everything it describes. Every number in it is counted from the run's own files or was
measured by the ranks; what does not apply to an arm is null, and nothing is a constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.accounting.frontier import RankFrontiers
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.tree import MAX_GROWN_BYTES
from explicit_learning.files.typed_json import RESTORE, document, read_document, to_json, write_document
from explicit_learning.model_files.adapter_names import adapted_modules
from explicit_learning.model_files.parts import PartCounts
from explicit_learning.rundir import layout
from explicit_learning.rundir.launches import Change, Machine
from explicit_learning.rundir.rank_report import (
    KernelCheck,
    LossTerm,
    RankGpu,
    RolloutReport,
    SamplerAgreement,
    TrainableParameter,
)
from explicit_learning.rundir.run_manifest import PlanIdentities
from explicit_learning.rundir.validation import BestCheckpoint  # noqa: TC001 - read at run time

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "AuditEntry",
    "CheckpointEntry",
    "CompletionMarker",
    "Compute",
    "Counts",
    "Difference",
    "FinalAdapter",
    "LaunchEntry",
    "Launches",
    "MarkerIdentities",
    "Memory",
    "Parameters",
    "ResumeProbe",
    "Validated",
    "ValidationCompute",
    "read_marker",
    "write_marker",
]

GATE = "completion"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerIdentities(PlanIdentities):
    """Everything that a complete run was made of: what its plan names, and what became of it."""

    plan_sha256: str
    frozen_config_sha256: str
    run_manifest_sha256: str
    base_weights_sha256: str
    initial_adapter_tensors_sha256: str
    final_adapter_tensors_sha256: str
    frozen_commit: str
    frozen_dirty: bool
    running_commit: str
    running_dirty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the run used and made; ``None`` where a count does not apply to the arm."""

    optimizer_steps: int
    records: int
    records_left_out: int | None
    sft_loss_tokens: int | None
    sft_loss_token_ceiling: int | None
    sampled_tokens: int | None
    sampled_token_ceiling: int | None
    completions: int | None
    unique_prompt_groups: int | None
    zero_variance_groups: int | None
    malformed: int | None
    malformed_by_rank: tuple[int, ...] | None
    truncated: int | None
    truncated_by_rank: tuple[int, ...] | None
    discarded_completions: int | None
    discarded_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """A complete checkpoint: the hash of its mark, and of each other file by relative POSIX path."""

    name: str
    step: int
    mark_sha256: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalAdapter:
    """The final adapter.

    Attributes:
        files: SHA-256 of each file by relative POSIX path.
        tensors_sha256: Digest of its tensors.
        unchanged: Whether its tensors are those of the initial adapter: the run trained nothing.
    """

    files: dict[str, str]
    tensors_sha256: str
    unchanged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What was trained.

    Attributes:
        trainable: Number of trainable parameters: the entries of all tensors.
        tensors: Each tensor's shape and type, by its name in the wrapped model.
        sha256: ``sha256_json(tensors)``.
        modules: How many modules of each part of the base model they are of.
    """

    trainable: int
    tensors: dict[str, TrainableParameter]
    sha256: str
    modules: PartCounts

    @classmethod
    def of(cls, tensors: dict[str, TrainableParameter]) -> Parameters:
        """Return the counts and the hash of the tensors beside them."""
        return cls(
            trainable=sum(math.prod(tensor.shape) for tensor in tensors.values()),
            tensors=tensors,
            sha256=sha256_json(to_json(tensors)),
            modules=PartCounts.of(adapted_modules(tensors)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEntry:
    """A launch of the run.

    Attributes:
        launch_id: Random name of the launch.
        start_sha256: SHA-256 of the bytes of its start record.
        end_sha256: The same of its end record; ``None`` for a killed launch, and for the one that writes the marker.
        checkpoint: Checkpoint that it continued from; ``None`` if it started from the seed.
        from_step: Optimizer steps done where it began.
        to_step: Optimizer steps up to which the run kept what it did; ``from_step`` if it kept nothing.
        exit_code: The exit code that it ended with; ``None`` as for ``end_sha256``.
        machines: Its machines, by node: places in the marker's ``machines``.
        accepted_changes: What decides numbers and differs from the launch that it continued, or between its nodes.
    """

    launch_id: str
    start_sha256: str
    end_sha256: str | None
    checkpoint: str | None
    from_step: int
    to_step: int
    exit_code: int | None
    machines: tuple[int, ...]
    accepted_changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Every launch that started ranks, in order, and how many of them lived to report memory and time."""

    records: tuple[LaunchEntry, ...]
    measured: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that is not the same on all machines: a JSON pointer into one, and what each has there, as text."""

    pointer: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One resume audit: its file, the SHA-256 of the file's bytes, and its result."""

    file: str
    sha256: str
    checkpoint: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeProbe:
    """What was proven about interruptions: the hash of the boundary file (smoke runs) and the audits."""

    boundary_sha256: str | None
    audits: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Highest memory of each rank over the measured launches.

    Attributes:
        peak_bytes_by_rank: Allocated on the GPU, or resident on a CPU.
        peak_reserved_bytes_by_rank: Reserved by torch on the GPU; ``None`` on a CPU, where it reserves none.
    """

    peak_bytes_by_rank: tuple[int, ...]
    peak_reserved_bytes_by_rank: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationCompute:
    """What validation cost, over all ranks.

    Attributes:
        forwards: Forwards while held-out questions were answered.
        sampled_tokens: Tokens of the answers. They are in no ledger, and in no budget.
        device_seconds: Time in validation, summed over ranks and measured launches; a part of the training's.
    """

    forwards: int
    sampled_tokens: int
    device_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """What was computed, over all ranks.

    Forwards and tokens travel in checkpoints: they are those of the planned steps, each counted once, as in a run that
    was not interrupted. Times are what was done in the measured launches, steps done again included.

    Attributes:
        forwards: Forwards that score whole sequences: for the loss, the reference, and an objective's own terms.
        sampling_forwards: Forwards while sampling; ``None`` in SFT arms.
        scored_tokens: Tokens whose log-probabilities were computed.
        device_seconds: Time in training, summed over ranks and launches.
        runtime_seconds: Time in training by the clock, summed over launches.
        validation: What validation cost, apart from the forwards and tokens above; ``None`` in runs without it.
    """

    forwards: int
    sampling_forwards: int | None
    scored_tokens: int
    device_seconds: float
    runtime_seconds: float
    validation: ValidationCompute | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """What validation found: how much was held out, and the best checkpoint, which rotation never removes."""

    groups: int
    questions: int
    best: BestCheckpoint


@document("completion-marker")
@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionMarker:
    """The whole file; its schema describes each field."""

    schema_version: int = SCHEMA_VERSION
    status: str = "completed"
    trained: bool
    run_id: str
    run_mode: str
    arm: str
    seed: int
    data_seed: int
    identities: MarkerIdentities
    counts: Counts
    accounting: tuple[RankFrontiers, ...]
    checkpoints: tuple[CheckpointEntry, ...]
    adapter: FinalAdapter
    parameters: Parameters
    reward: dict[str, Any] | None
    objective: dict[str, Any] | None
    loss_terms: dict[str, LossTerm]
    unchanged_adapter_steps: tuple[int, ...]
    zero_gradient_steps: tuple[int, ...]
    launches: Launches
    machines: tuple[Machine, ...]
    differences: tuple[Difference, ...]
    gpus: tuple[RankGpu | None, ...]
    sampler_agreement: SamplerAgreement | None
    rollouts: RolloutReport | None
    kernel_checks: tuple[KernelCheck, ...] | None
    layer_functions: dict[str, str]
    resume_probe: ResumeProbe | None
    memory: Memory
    compute: Compute
    metrics: dict[str, Any]
    log_history: tuple[dict[str, Any], ...]
    validation: Validated | None = None


def write_marker(run: Path, marker: CompletionMarker) -> str:
    """Write a marker, whole or not at all, and return the SHA-256 of its bytes.

    Raises:
        Refusal: If it breaks its schema (exit code 70): a record that readers refuse is not a record.
        OSError: If it cannot be written.
    """
    write_document(run / layout.COMPLETION_MARKER, marker, gate=GATE)
    return sha256_file(run / layout.COMPLETION_MARKER)


def read_marker(run: Path) -> CompletionMarker:
    """Return a run's marker.

    Raises:
        Refusal: If it is missing, not strict JSON, or breaks its schema.
    """
    file = run / layout.COMPLETION_MARKER
    return read_document(file, CompletionMarker, gate=GATE, fix=RESTORE, max_bytes=MAX_GROWN_BYTES)
