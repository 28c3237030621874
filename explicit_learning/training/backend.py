"""The training backend: the function that each rank's process calls.

It leads from the verified launch manifest to an outcome. The policy is built and checked, the arm's trainer is put
together, a checkpoint is restored if there is one to resume, and training goes on until the last step, a stop, or the
end of the token budget.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir.checkpoint_mark import read_mark
from explicit_learning.rundir.layout import TENSORBOARD, step_of
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.training.phases import Phases

if TYPE_CHECKING:
    from explicit_learning.launch.rank import RankContext
    from explicit_learning.rundir.rank_report import KernelCheck, RankReport
    from explicit_learning.training.measurements import WeightDigests
    from explicit_learning.training.policy import Policy
    from explicit_learning.training.records import Records
    from explicit_learning.training.state.checkpointing import CheckpointingTrainer

__all__ = ["run"]

BUDGET_IS_SHORT = "the remaining token budget does not cover another generation cycle"


def run(context: RankContext) -> RankOutcome:
    """Train on this rank.

    Raises:
        Refusal: If the model, the adapter, the data or a checkpoint is not what the plan says.
        NonFiniteLossError: On all ranks together, before the step is taken.
    """
    _set_library_variables(context)
    manifest = context.manifest
    plan, start = manifest.plan, manifest.resume_checkpoint
    phases = Phases.on(plan.hardware.accelerator, context.local_rank)
    import torch
    from transformers.utils import logging

    from explicit_learning.training.collectives import any_rank
    from explicit_learning.training.determinism import apply_determinism
    from explicit_learning.training.measurements import WeightDigests, rank_gpu
    from explicit_learning.training.metrics import MetricsFile
    from explicit_learning.training.policy import build_policy
    from explicit_learning.training.trainers import build_trainer

    checkpoint = manifest.run / start if start else None
    logging.disable_progress_bar()
    apply_determinism(plan.determinism)
    if plan.hardware.accelerator == "cuda":  # libraries ask for the current device's architecture
        torch.cuda.set_device(context.local_rank)

    context.say(f"loading {Path(plan.model.path).name}")
    adapter = Path(manifest.paths.initial_adapter) if manifest.paths.initial_adapter else None
    with phases.phase("load"):
        policy = build_policy(plan, model=Path(manifest.paths.model), initial_adapter=adapter)
    with phases.phase("digest"):
        initial = WeightDigests.of(policy.model)
    with phases.phase("load"):
        records = _open_records(context, checkpoint)
        trainer = build_trainer(context, policy, records, checkpoint, phases)
    loop = trainer.loop
    loop.checkpoint = start
    loop.kernel_checks = _checked_kernels(trainer)
    if context.rank == 0:
        loop.metrics = MetricsFile(manifest.run, checkpoint=checkpoint)

    step = (step_of(start) or 0) if start else 0
    if step < plan.optimisation.max_steps and any_rank([loop.budget_is_short()], trainer.args.device)[0]:
        return RankOutcome(status="budget_exhausted", optimizer_step=step, checkpoint=start, message=BUDGET_IS_SHORT)
    context.say(_opening_line(context, policy, checkpoint))
    _train(trainer, checkpoint)
    report = _finish(trainer, initial) if loop.status == "completed" else None
    if loop.metrics is not None:
        loop.metrics.close()
    if records is not None:
        records.close()
    uses, peak, reserved = phases.ended()
    if report is not None:  # the marker has its numbers, and a verification compares it with the launch's end record
        report = replace(report, peak_memory_bytes=peak, peak_reserved_bytes=reserved)
    return RankOutcome(
        status=loop.status,
        optimizer_step=trainer.state.global_step,
        checkpoint=loop.checkpoint,
        message=BUDGET_IS_SHORT if loop.status == "budget_exhausted" else None,
        peak_memory_bytes=peak,
        peak_reserved_bytes=reserved,
        device_seconds=loop.seconds,
        gpu=rank_gpu(trainer.args.device),
        phases=uses,
        report=report,
    )


def _set_library_variables(context: RankContext) -> None:
    """Set the environment variables that libraries read when they are imported."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(context.manifest.run / TENSORBOARD))


def _open_records(context: RankContext, checkpoint: Path | None) -> Records | None:
    """Open ledger and trace at the checkpoint's frontiers; SFT arms have none."""
    from explicit_learning.training.records import Records

    if not context.manifest.plan.samples:
        return None
    if checkpoint is None:
        return Records.open(context, None)
    frontiers = next(part for part in read_mark(checkpoint).frontiers if part.rank == context.rank)
    return Records.open(context, frontiers)


def _opening_line(context: RankContext, policy: Policy, checkpoint: Path | None) -> str:
    plan = context.manifest.plan
    action = f"resuming at {checkpoint.name}" if checkpoint else "training"
    return (
        f"{action}: {plan.arm}, {plan.optimisation.max_steps} steps of {Geometry.of(plan).rows_per_cycle} rows, "
        f"LoRA on {len(policy.targets)} modules"
    )


def _checked_kernels(trainer: CheckpointingTrainer) -> tuple[KernelCheck, ...] | None:
    """Compare the functions of the model's layers with torch's on this GPU; a CPU has no others than torch's.

    Raises:
        Refusal: If one computes something else (78).
    """
    import torch

    from explicit_learning.training.kernel_check import check_kernels, require_equal_kernels

    device, plan = trainer.args.device, trainer.loop.context.manifest.plan
    if device.type != "cuda":
        return None
    config = trainer.accelerator.unwrap_model(trainer.model).config.get_text_config()
    dtype: torch.dtype = getattr(torch, plan.model.dtype)
    checks = check_kernels(config, attention=plan.model.attn_implementation, dtype=dtype, device=device)
    require_equal_kernels(checks)
    return checks


def _train(trainer: CheckpointingTrainer, checkpoint: Path | None) -> None:
    from explicit_learning.training.state.resume_check import check_resumed

    if checkpoint is None:
        trainer.train()
        return
    loop = trainer.loop
    loop.before_first_step = partial(check_resumed, trainer)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    if loop.before_first_step is not None:  # the checkpoint is the last step's: no step was left that calls it
        trainer.restore_streams(str(checkpoint))
        loop.check_before_first_step()


def _finish(trainer: CheckpointingTrainer, initial: WeightDigests) -> RankReport:
    """Measure the run after its last step, and write the final adapter on rank 0."""
    from explicit_learning.training.collectives import barrier
    from explicit_learning.training.measurements import rank_report
    from explicit_learning.training.policy import ADAPTER
    from explicit_learning.training.state.adapters import write_final_adapter

    report = rank_report(trainer, initial=initial)
    context = trainer.loop.context
    manifest = context.manifest
    if context.rank == 0:
        model = trainer.accelerator.unwrap_model(trainer.model)
        with trainer.loop.phases.phase("checkpoint"):
            write_final_adapter(manifest.run, model, adapter=ADAPTER, base_name=Path(manifest.plan.model.path).name)
    barrier()
    return report
