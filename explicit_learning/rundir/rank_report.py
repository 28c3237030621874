"""What a rank reports about a run that it finished.

The launcher writes the completion marker, but only ranks can measure weights, gradients and losses. They report these
measurements in this class. A missing one is a refusal, not a null in the marker. Ledgers, traces, checkpoints and the
adapter are read from their files instead: a file is better evidence than a report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from explicit_learning.plan.probes import ProbeReason  # noqa: TC001 - read at run time

__all__ = [
    "AgreementProbe",
    "KernelCheck",
    "LossTerm",
    "Nearer",
    "PhaseName",
    "PhaseUse",
    "RankGpu",
    "RankReport",
    "RolloutReport",
    "SamplerAgreement",
    "TrainableParameter",
    "ValidationCost",
]

PhaseName = Literal["load", "digest", "rollout", "probe", "validation", "score", "backward", "checkpoint", "other"]
Nearer = Literal["current", "previous", "cannot_tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCheck:
    """How far a function that the model's layers call differs from torch's own, relative to the size of torch's result.

    Attributes:
        name: The function.
        forward: Difference of its result.
        backward: Largest difference of one of its gradients; ``None`` where the model trains nothing through it.
    """

    name: str
    forward: float
    backward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """What was measured of one term of the loss, over all ranks.

    Attributes:
        called: Backward passes that computed it.
        finite: Whether every value was finite.
        gradient: Whether what it adds to the loss had a gradient other than 0 in at least one backward pass.
    """

    called: int
    finite: bool
    gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableParameter:
    """The form of a parameter that is trained.

    Attributes:
        shape: Its shape.
        dtype: Its type, as torch names it (``float32``).
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGpu:
    """The GPU that a rank computes on, and the versions of its libraries as torch loaded them.

    Attributes:
        uuid: As NVML and ``CUDA_VISIBLE_DEVICES`` write it.
        cuda: Version that torch was built for.
        cudnn: Version that was loaded; ``None`` if there is none.
        nccl: Version that was loaded; ``None`` if there is none.
    """

    uuid: str
    cuda: str | None
    cudnn: str | None
    nccl: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseUse:
    """What one phase used of a rank's launch, the phases inside it left out.

    The phases: ``load`` (model, adapter and data), ``digest`` (hashing weights and state), ``rollout`` (sampling and
    rewarding completions), ``probe`` (comparing sampler and trainer), ``validation`` (answering held-out questions),
    ``score`` (forwards of the loss, of the reference and of objectives), ``backward`` (with the activations it computes
    again), ``checkpoint`` (writing and restoring one, and the final adapter), ``other``.

    Attributes:
        seconds: Time spent in it.
        peak_memory_bytes: Highest memory during it: allocated on the GPU, resident on a CPU; ``None`` where the kernel
            only tells the highest of the whole process.
    """

    seconds: float
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerAgreement:
    """How far the log-probs of sampled tokens agreed between sampler and trainer, over all ranks. Unit: nats.

    Attributes:
        tokens: Tokens that were compared: those in the loss, in the first use of each generation cycle.
        mean: Mean absolute difference; ``None`` if no token was compared.
        largest: Largest absolute difference; ``None`` if no token was compared.
    """

    tokens: int
    mean: float | None
    largest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementProbe:
    """What one agreement probe found, over all ranks: log-probs at temperature 1, without a constraint. Unit: nats.

    Attributes:
        step: Optimizer steps done.
        reason: Why the sampler was probed then.
        tokens: Tokens that were compared.
        mean: Mean absolute difference over all of them.
        largest: Largest absolute difference.
        fixed: Of the fixed completions alone.
        fresh: Of the fresh samples alone.
        previous_mean: Mean absolute difference between the sampler and the trainer with the adapter before the current
            one; ``None`` if the adapter had not changed.
        effect: Mean absolute difference between the trainer with both adapters; ``None`` likewise.
        nearer: The adapter with which the trainer is nearer to the sampler; ``None`` likewise.
        tolerance: The largest mean that was accepted.
    """

    step: int
    reason: ProbeReason
    tokens: int
    mean: float
    largest: float
    fixed: SamplerAgreement
    fresh: SamplerAgreement
    previous_mean: float | None
    effect: float | None
    nearer: Nearer | None
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """What sampled the completions, and what was measured of it.

    Attributes:
        engine: ``exact``: the trained model itself; ``vllm``: an engine in each rank.
        engine_base_before_sha256: Tensor digest of the engine's own base weights after its start, in this launch;
            ``None`` without an engine.
        engine_base_after_sha256: The same after the last step.
        probes: The probes at the run's start and after some of its steps, in order, each step's once.
        resume_probe: What was found before the first step of this launch, if it continued the run.
    """

    engine: Literal["exact", "vllm"]
    engine_base_before_sha256: str | None
    engine_base_after_sha256: str | None
    probes: tuple[AgreementProbe, ...]
    resume_probe: AgreementProbe | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationCost:
    """What one rank spent on validation.

    Attributes:
        forwards: Forwards while it answered held-out questions, over the whole run.
        tokens: Tokens of its answers, over the whole run.
        seconds: Time in validation, in this launch.
    """

    forwards: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank's measurements of a run that reached its last step; a part of its `RankOutcome`.

    Counts are over all ranks (all-reduced) and over the whole run, launches before a resume included, unless said
    otherwise: after a resume ``ledger.frontier()`` and the trainer's own ``log_history`` still hold both.

    Attributes:
        rank: This rank.
        world_size: Number of ranks.
        optimizer_steps: Optimizer steps done.
        records: Rows that the steps used, counted: SFT rows, or prompts (slot visits).
        records_left_out: SFT rows of the arm that no step uses; ``None`` in RL arms.
        sft_loss_tokens: Tokens with a loss; ``None`` in RL arms.
        sampled_tokens: All-reduced sum of ``ledger.frontier().tokens``; ``None`` in SFT arms.
        completions: All-reduced sum of ``ledger.frontier().rows``; ``None`` in SFT arms.
        forwards: Forwards of this rank that score whole sequences (loss, reference, an objective's own).
        sampling_forwards: Forwards of this rank while sampling; ``None`` in SFT arms.
        scored_tokens: Tokens whose log-probabilities this rank computed.
        trainable_parameters: Every trainable parameter of this rank's model, by its name in the wrapped model.
        initial_adapter_tensors_sha256: Tensor digest (`explicit_learning.model_files.tensors`) of the adapter before
            the run's first step (kept over resumes), under the names and dtypes in which the adapter is saved.
        final_adapter_tensors_sha256: The same after the last step, from the live tensors: the launcher compares it
            with the file ``final-adapter/adapter_model.safetensors``.
        base_weights_before_sha256: Tensor digest of the base model's weights before this launch's first step.
        base_weights_after_sha256: The same after its last step.
        peak_memory_bytes: Highest memory of this rank in this launch: allocated on the GPU, resident on a CPU.
        peak_reserved_bytes: Highest GPU memory that torch had reserved for this rank in this launch, its cache
            included; ``None`` on a CPU, where it reserves none.
        device_seconds: Time from this launch's first step to its last.
        gpu: The GPU of this launch; ``None`` on a CPU.
        unchanged_adapter_steps: Steps (from 1) with a non-zero learning rate that left the adapter unchanged.
        zero_gradient_steps: Steps (from 1) whose gradient norm was exactly 0.
        sampler_agreement: How far sampler and trainer agreed; ``None`` in SFT arms.
        rollouts: What sampled, and whether it was the policy; ``None`` in SFT arms.
        kernel_checks: How far the functions of the model's layers differed from torch's own on this launch's GPU;
            ``None`` on a CPU, which has no others.
        layer_functions: Where the functions come from that compute the gated-delta layers (module and name), by name.
        loss_terms: Each term of the arm's loss by name (`explicit_learning.arms.Arm.terms`).
        log_history: The trainer's log; numbers that are not finite are ``None``.
        validation: What this rank spent on validation; ``None`` in runs without it.
    """

    rank: int
    world_size: int
    optimizer_steps: int
    records: int
    records_left_out: int | None
    sft_loss_tokens: int | None
    sampled_tokens: int | None
    completions: int | None
    forwards: int
    sampling_forwards: int | None
    scored_tokens: int
    trainable_parameters: dict[str, TrainableParameter]
    initial_adapter_tensors_sha256: str
    final_adapter_tensors_sha256: str
    base_weights_before_sha256: str
    base_weights_after_sha256: str
    peak_memory_bytes: int
    peak_reserved_bytes: int | None
    device_seconds: float
    gpu: RankGpu | None
    unchanged_adapter_steps: tuple[int, ...]
    zero_gradient_steps: tuple[int, ...]
    sampler_agreement: SamplerAgreement | None
    rollouts: RolloutReport | None
    kernel_checks: tuple[KernelCheck, ...] | None
    layer_functions: dict[str, str]
    loss_terms: dict[str, LossTerm]
    log_history: tuple[dict[str, Any], ...]
    validation: ValidationCost | None = None
