"""Measurements that the completion marker records and that no file of the run holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from explicit_learning.rundir.metrics import logged_rows
from explicit_learning.rundir.rank_report import (
    RankGpu,
    RankReport,
    SamplerAgreement,
    TrainableParameter,
    ValidationCost,
)
from explicit_learning.training.collectives import sum_over_ranks
from explicit_learning.training.kernels import bound_layer_functions
from explicit_learning.training.objectives.loss_term_check import checked_terms
from explicit_learning.training.policy import ADAPTER, base_tensors, trainable_parameters
from explicit_learning.training.state.adapters import adapter_tensors
from explicit_learning.training.state.digests import live_tensors_sha256

if TYPE_CHECKING:
    from peft import PeftModel

    from explicit_learning.rundir.counters import Counters
    from explicit_learning.training.state.checkpointing import CheckpointingTrainer
    from explicit_learning.training.step_loop import LoopState

__all__ = ["WeightDigests", "rank_gpu", "rank_report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDigests:
    """Digests of a policy's weights at one moment.

    Attributes:
        base: Of the base model's parameters and buffers.
        adapter: Of the policy's adapter.
    """

    base: str
    adapter: str

    @classmethod
    def of(cls, model: PeftModel) -> WeightDigests:
        """Digest the unwrapped model's weights as they are now."""
        return cls(
            base=live_tensors_sha256(base_tensors(model)), adapter=live_tensors_sha256(adapter_tensors(model, ADAPTER))
        )


def rank_gpu(device: torch.device) -> RankGpu | None:
    """Return the GPU that this process computes on and the libraries that torch has loaded; ``None`` on a CPU."""
    if device.type != "cuda":
        return None
    cudnn = torch.backends.cudnn.version()
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
    return RankGpu(
        uuid=f"GPU-{torch.cuda.get_device_properties(device).uuid}",
        cuda=torch.version.cuda,
        cudnn=None if cudnn is None else cudnn_version(cudnn),
        nccl=None if nccl is None else ".".join(map(str, nccl)),
    )


def cudnn_version(number: int) -> str:
    """Return cuDNN's version from its number: ``10000 * major + 100 * minor + patch`` from version 9 on (cudnn.h)."""
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def rank_report(trainer: CheckpointingTrainer, *, initial: WeightDigests) -> RankReport:
    """Return a rank's measurements of the run that it has finished; all ranks call this together.

    Args:
        trainer: The trainer, after its last step.
        initial: The weights before this launch's first step: the initial adapter, not the one that was resumed.
    """
    loop, state, records = trainer.loop, trainer.state, trainer.records
    model = trainer.accelerator.unwrap_model(trainer.model)
    counters, device = loop.counters, trainer.args.device
    tokens = completions = loss_tokens = None
    [used] = sum_over_ranks([counters.records], device)
    if records is None:
        [loss_tokens] = sum_over_ranks([counters.loss_tokens], device)
    else:
        tokens, completions = sum_over_ranks([records.ledger.tokens, records.ledger.rows], device)
    terms = checked_terms(counters, device)
    if records is None:  # the only term of its loss has the gradient of the steps
        some = len(counters.zero_gradient_steps) < state.global_step
        terms = {name: replace(term, gradient=some) for name, term in terms.items()}
    with loop.phases.phase("digest"):
        final = WeightDigests.of(model)
    return RankReport(
        rank=loop.context.rank,
        world_size=loop.context.world_size,
        optimizer_steps=state.global_step,
        records=used,
        records_left_out=trainer.records_left_out,
        sft_loss_tokens=loss_tokens,
        sampled_tokens=tokens,
        completions=completions,
        forwards=counters.forwards,
        sampling_forwards=None if records is None else counters.sampling_forwards,
        scored_tokens=counters.scored_tokens,
        trainable_parameters={
            name: TrainableParameter(shape=tuple(part.shape), dtype=str(part.dtype).removeprefix("torch."))
            for name, part in trainable_parameters(model).items()
        },
        initial_adapter_tensors_sha256=initial.adapter,
        final_adapter_tensors_sha256=final.adapter,
        base_weights_before_sha256=initial.base,
        base_weights_after_sha256=final.base,
        peak_memory_bytes=loop.phases.peak_memory_bytes(),
        peak_reserved_bytes=loop.phases.peak_reserved_bytes(),
        device_seconds=loop.seconds,
        gpu=rank_gpu(device),
        unchanged_adapter_steps=tuple(counters.unchanged_adapter_steps),
        zero_gradient_steps=tuple(counters.zero_gradient_steps),
        sampler_agreement=None if records is None else _sampler_agreement(counters),
        rollouts=trainer.rollout_report(),
        kernel_checks=loop.kernel_checks,
        layer_functions=bound_layer_functions(),
        loss_terms=terms,
        log_history=tuple(logged_rows(state.log_history)),
        validation=_validation_cost(loop),
    )


def _validation_cost(loop: LoopState) -> ValidationCost | None:
    if (counts := loop.counters.validation) is None:
        return None
    use = loop.phases.uses().get("validation")  # a launch that had only to finish the run has not validated
    return ValidationCost(forwards=counts.forwards, tokens=counts.tokens, seconds=use.seconds if use else 0.0)


def _sampler_agreement(counters: Counters) -> SamplerAgreement:
    tokens = counters.compared_tokens
    return SamplerAgreement(
        tokens=tokens,
        mean=counters.log_prob_differences / tokens if tokens else None,
        largest=counters.largest_log_prob_difference if tokens else None,
    )
