"""A plan's settings as the trainers' arguments, in one place.

Everything that TRL and transformers would choose by themselves is set here, because their defaults change between
versions and between machines. What this program does itself (checkpoints, their rotation, the order of the data,
logging) is switched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.data.prompt import TEMPLATE_OPTIONS
from explicit_learning.gates.trackers import TENSORBOARD_TRACKER
from explicit_learning.plan.idle_settings import warmup_steps

if TYPE_CHECKING:
    from trl import GRPOConfig, SFTConfig

    from explicit_learning.launch.rank import RankContext

__all__ = ["PEER_TIMEOUT", "TEMPLATE_OPTIONS", "grpo_arguments", "sft_arguments"]

# Longest time that a collective waits for a slower rank, and a rank for the rows of a batch. Unit: seconds.
PEER_TIMEOUT = 1800
SCHEDULERS = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}


def sft_arguments(context: RankContext) -> SFTConfig:
    """Return TRL's SFT arguments: one pass in a fixed order, a loss on completions only, nothing packed or cut."""
    from trl import SFTConfig

    return SFTConfig(
        **_shared(context),
        completion_only_loss=True,
        packing=False,
        shuffle_dataset=False,
        max_length=None,
        loss_type="nll",
    )


def grpo_arguments(context: RankContext) -> GRPOConfig:
    """Return TRL's GRPO arguments; its own code for vLLM is never entered (see `explicit_learning.training.rollouts`).

    Raises:
        ValueError: If the plan has no objective: it is not an RL plan.
    """
    from trl import GRPOConfig

    plan = context.manifest.plan
    objective, generation = plan.objective, plan.generation
    if objective is None:
        raise ValueError(f"the arm {plan.arm} has no objective")
    return GRPOConfig(
        **_shared(context),
        num_generations=generation.num_generations,
        steps_per_generation=plan.optimisation.gradient_accumulation_steps,
        max_completion_length=generation.max_completion_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=0,
        chat_template_kwargs=dict(TEMPLATE_OPTIONS),
        shuffle_dataset=False,
        disable_dropout=False,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        beta=objective.beta,
        num_iterations=objective.num_iterations,
        epsilon=objective.epsilon_low,
        epsilon_high=objective.epsilon_high,
        scale_rewards=objective.scale_rewards,
        loss_type=objective.loss_type,
        mask_truncated_completions=objective.mask_truncated_completions,
        log_completions=False,
        log_multimodal=False,
    )


def _shared(context: RankContext) -> dict[str, Any]:
    """Return the arguments that all trainers share."""
    manifest = context.manifest
    plan, optimisation = manifest.plan, manifest.plan.optimisation
    on_cpu = plan.hardware.accelerator == "cpu"
    return {
        "output_dir": manifest.run_folder,
        "max_steps": optimisation.max_steps,
        "per_device_train_batch_size": optimisation.per_device_batch_size,
        "gradient_accumulation_steps": optimisation.gradient_accumulation_steps,
        "learning_rate": optimisation.learning_rate,
        "lr_scheduler_type": SCHEDULERS[optimisation.lr_scheduler],
        "warmup_steps": warmup_steps(optimisation.max_steps, optimisation.warmup_ratio),
        "optim": optimisation.optimizer,
        "adam_beta1": optimisation.adam_beta1,
        "adam_beta2": optimisation.adam_beta2,
        "adam_epsilon": optimisation.adam_epsilon,
        "weight_decay": optimisation.weight_decay,
        "max_grad_norm": optimisation.max_grad_norm,
        "gradient_checkpointing": optimisation.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "bf16": plan.model.dtype == "bfloat16",
        "fp16": False,
        "tf32": None if on_cpu else False,
        "use_cpu": on_cpu,
        "seed": plan.seed,
        "data_seed": plan.data_seed,
        "full_determinism": False,
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "save_total_limit": None,
        "eval_strategy": "no",
        "report_to": [TENSORBOARD_TRACKER] if TENSORBOARD_TRACKER in manifest.report_to else "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_drop_last": optimisation.drop_last,
        "ddp_find_unused_parameters": True,
        "ddp_broadcast_buffers": False,
        # If it is set, Accelerate expects a process group, even for one rank.
        "ddp_backend": ("gloo" if on_cpu else "nccl") if plan.hardware.world_size > 1 else None,
        "ddp_timeout": PEER_TIMEOUT,
    }
