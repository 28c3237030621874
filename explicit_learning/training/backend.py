"""The training backend: what a rank's shell calls.

One function leads from the verified launch manifest to an outcome: the policy is built and checked, the arm's trainer
is put together, a checkpoint is restored if there is one to resume, and the run goes on until its last step, a stop, or
the end of its budget. Everything a completion marker needs and no file holds is measured here.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.arms import ARMS
from explicit_learning.errors import Fault, Refusal
from explicit_learning.files.canonical import sha256_json
from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir.layout import LOGS, TENSORBOARD
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.rank_report import LossTerm, RankReport
from explicit_learning.training.metrics import logged_rows

if TYPE_CHECKING:
    from explicit_learning.accounting.frontier import RankFrontiers
    from explicit_learning.data.images import ImageStore
    from explicit_learning.launch.context import RankContext
    from explicit_learning.training.policy import Policy
    from explicit_learning.training.records import Records
    from explicit_learning.training.state.checkpointing import DurableTrainer
    from explicit_learning.training.step_loop import Loop

__all__ = ["run"]


def run(context: RankContext) -> RankOutcome:
    """Train on this rank.

    Raises:
        Refusal: If the model, the adapter, the data or a checkpoint is not what the plan says.
        NonFiniteLossError: On all ranks together, before the step is taken.
    """
    _configure(context)
    import torch
    from transformers.utils import logging

    from explicit_learning.training.collectives import agree, barrier
    from explicit_learning.training.metrics import MetricsFile
    from explicit_learning.training.policy import ADAPTER, base_tensors, build_policy
    from explicit_learning.training.state.adapters import adapter_tensors
    from explicit_learning.training.state.digests import live_tensors_sha256
    from explicit_learning.training.state.final_adapter import write_final_adapter
    from explicit_learning.training.state.resume_check import check_resumed
    from explicit_learning.training.step_loop import peak_memory_bytes

    manifest = context.manifest
    plan = manifest.plan
    logging.disable_progress_bar()
    torch.use_deterministic_algorithms(plan.determinism == "strict")
    checkpoint = manifest.run / manifest.resume_checkpoint if manifest.resume_checkpoint else None
    context.say(f"loading {Path(plan.model.path).name}")
    initial = Path(manifest.paths.initial_adapter) if manifest.paths.initial_adapter else None
    policy = build_policy(plan, model=Path(manifest.paths.model), initial_adapter=initial)
    before = live_tensors_sha256(base_tensors(policy.model))
    initial_digest = live_tensors_sha256(adapter_tensors(policy.model, ADAPTER))
    records = _open_records(context, checkpoint)
    trainer = _build_trainer(context, policy, records, checkpoint)
    loop = trainer.loop
    if context.rank == 0:
        loop.metrics = MetricsFile(manifest.run, checkpoint=checkpoint)
    loop.checkpoint = manifest.resume_checkpoint
    begun = _step(manifest.resume_checkpoint)
    if begun < plan.optimisation.max_steps and agree([loop.budget_is_short()], trainer.args.device)[0]:
        return RankOutcome(
            status="budget_exhausted",
            optimizer_step=begun,
            checkpoint=manifest.resume_checkpoint,
            message="the remaining token budget does not cover another generation cycle",
        )
    context.say(_opening_line(context, policy, checkpoint))
    loop.before_first_step = partial(check_resumed, trainer) if checkpoint else None
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if loop.before_first_step is not None:  # the checkpoint was the last step's: nothing has needed the streams yet
        trainer.restore_streams(str(checkpoint))
        loop.check_before_first_step()
    report = None
    if loop.status == "completed":
        report = _report(trainer, initial_digest=initial_digest, before=before)
        if context.rank == 0:
            model = trainer.accelerator.unwrap_model(trainer.model)
            write_final_adapter(manifest.run, model, adapter=ADAPTER, base_name=Path(plan.model.path).name)
        barrier()
    if loop.metrics is not None:
        loop.metrics.close()
    if records is not None:
        records.close()
    return RankOutcome(
        status=loop.status,
        optimizer_step=trainer.state.global_step,
        checkpoint=loop.checkpoint,
        message=_closing_line(loop),
        peak_memory_bytes=peak_memory_bytes(trainer.args.device),
        device_seconds=loop.seconds,
        report=report,
    )


def _configure(context: RankContext) -> None:
    """Say to the libraries what they read from the environment when they are imported."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(context.manifest.run / TENSORBOARD))
    os.environ.setdefault("WANDB_DIR", str(context.manifest.run / LOGS))


def _step(checkpoint: str | None) -> int:
    from explicit_learning.rundir.layout import step_of

    return (step_of(checkpoint) or 0) if checkpoint else 0


def _open_records(context: RankContext, checkpoint: Path | None) -> Records | None:
    """Open ledger and trace at the checkpoint's frontiers; SFT arms have none."""
    from explicit_learning.training.records import Records

    if not context.manifest.plan.samples:
        return None
    return Records.open(context, _frontiers(context, checkpoint))


def _frontiers(context: RankContext, checkpoint: Path | None) -> RankFrontiers | None:
    from explicit_learning.rundir.checkpoint_mark import read_mark

    if checkpoint is None:
        return None
    return next(part for part in read_mark(checkpoint).frontiers if part.rank == context.rank)


def _build_trainer(
    context: RankContext, policy: Policy, records: Records | None, checkpoint: Path | None
) -> DurableTrainer:
    """Put the arm's trainer together, with the loop around it."""
    from transformers import PrinterCallback

    from explicit_learning.training.step_loop import Loop, StepLoop

    plan = context.manifest.plan
    loop = Loop(
        context=context,
        cycle=Geometry.of(plan).iterations,
        budget_is_short=records.is_short if records else bool,
    )
    build = _aligned_trainer if plan.samples else _certificate_trainer
    trainer = build(context, policy, loop, records)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(StepLoop(loop, partial(trainer.restore_counters, checkpoint) if checkpoint else None))
    return trainer


def _certificate_trainer(context: RankContext, policy: Policy, loop: Loop, records: Records | None) -> DurableTrainer:
    from explicit_learning.data.reading import read_sft_rows
    from explicit_learning.training.arguments import sft_arguments
    from explicit_learning.training.sft import CertificateRows, CertificateTrainer
    from explicit_learning.training.tokens import loss_token_counts, sft_order, sft_prefix

    manifest = context.manifest
    plan, system = manifest.plan, _system_prompt(context)
    rows = sft_order(read_sft_rows(Path(manifest.paths.dataset)), arm=plan.arm, data_seed=plan.data_seed)
    counted = sft_prefix(
        loss_token_counts(policy.processor, rows, system),
        rows_per_step=Geometry.of(plan).rows_per_cycle,
        max_loss_tokens=plan.budget.max_sft_loss_tokens,
    )
    planned = (plan.optimisation.max_steps, plan.budget.planned_sft_loss_tokens)
    if (counted.steps, counted.loss_tokens) != planned:
        raise Refusal(
            Fault(
                gate="data",
                file=manifest.paths.dataset,
                pointer="/budget/planned_sft_loss_tokens",
                found=f"{counted.steps} steps with {counted.loss_tokens} loss tokens",
                expected=f"{planned[0]} steps with {planned[1]} loss tokens, as planned",
                fix="freeze the draft again with this data and this model",
            )
        )
    adapted_head = any(name.rpartition(".")[2] == "lm_head" for name in policy.targets)
    return CertificateTrainer(
        loop=loop,
        records=records,
        targets=policy.targets,
        model=policy.model,
        args=sft_arguments(context, adapted_head=adapted_head),
        rows=CertificateRows(rows[: counted.records], system=system, images=_images(context)),
        max_prompt_tokens=plan.generation.max_prompt_tokens,
        processing_class=policy.processor,
    )


def _aligned_trainer(context: RankContext, policy: Policy, loop: Loop, records: Records | None) -> DurableTrainer:
    from explicit_learning.data.reading import read_slot_rows
    from explicit_learning.data.slots import slot_manifest_sha256
    from explicit_learning.training.arguments import grpo_arguments
    from explicit_learning.training.constraint import compile_constraint
    from explicit_learning.training.objectives.build import objective_trainer
    from explicit_learning.training.rollouts import RolloutRows
    from explicit_learning.training.schedule import Schedule

    manifest = context.manifest
    plan = manifest.plan
    slots = read_slot_rows(Path(manifest.paths.dataset))
    identity = slot_manifest_sha256(slots)
    if identity != plan.data.slot_manifest_sha256:
        raise Refusal(
            Fault(
                gate="data",
                file=manifest.paths.dataset,
                pointer="/data/slot_manifest_sha256",
                found=identity,
                expected=str(plan.data.slot_manifest_sha256),
                fix="restore the slots that the plan was frozen with, or freeze the plan anew",
            )
        )
    if plan.reward is None:
        raise ValueError(f"the arm {plan.arm} has no reward")
    schedule = Schedule(
        slot_ids=tuple(slot.slot_id for slot in slots),
        data_seed=plan.data_seed,
        geometry=Geometry.of(plan),
        steps=plan.optimisation.max_steps,
    )
    tokenizer, system, images = policy.processor.tokenizer, _system_prompt(context), _images(context)
    trainer, terms = objective_trainer(manifest, slots, processor=policy.processor, images=images, system=system)
    return trainer(
        **terms,
        loop=loop,
        records=records,
        targets=policy.targets,
        plan=plan,
        weights=plan.reward,
        schedule=schedule,
        rows=RolloutRows(slots, arm=ARMS[plan.arm], schedule=schedule, system=system, images=images),
        constraint=compile_constraint(
            tokenizer,
            regex=plan.generation.answer_regex,
            vocabulary=policy.model.get_output_embeddings().weight.shape[0],
            terminal=plan.generation.terminal_token_ids,
        ),
        model=policy.model,
        args=grpo_arguments(context),
        processing_class=policy.processor,
    )


def _report(trainer: DurableTrainer, *, initial_digest: str, before: str) -> RankReport:
    """Measure what the completion marker records and no file holds."""
    from explicit_learning.training.collectives import total
    from explicit_learning.training.objectives.loss_term_check import observed_terms
    from explicit_learning.training.policy import ADAPTER, base_tensors, trainable_names
    from explicit_learning.training.state.adapters import adapter_tensors
    from explicit_learning.training.state.digests import live_tensors_sha256
    from explicit_learning.training.step_loop import peak_memory_bytes

    loop, state, records = trainer.loop, trainer.state, trainer.records
    geometry = Geometry.of(loop.context.manifest.plan)
    model = trainer.accelerator.unwrap_model(trainer.model)
    counters, device = loop.counters, trainer.args.device
    tokens = completions = loss_tokens = None
    used = state.global_step * geometry.rows_per_cycle
    if records is None:
        [loss_tokens] = total([counters.loss_tokens], device)
    else:
        tokens, completions = total([records.ledger.tokens, records.ledger.rows], device)
        used = geometry.cycles(state.global_step) * geometry.slots_per_cycle
    finite = counters.finite_steps == state.global_step
    cross_entropy = LossTerm(present=finite, finite=finite, gradient=counters.gradient_steps > 0)
    return RankReport(
        rank=loop.context.rank,
        world_size=loop.context.world_size,
        optimizer_steps=state.global_step,
        records=used,
        sft_loss_tokens=loss_tokens,
        sampled_tokens=tokens,
        completions=completions,
        prompts_truncated=0,
        trainable_parameters=sum(part.numel() for part in model.parameters() if part.requires_grad),
        trainable_parameter_names_sha256=sha256_json(trainable_names(model)),
        initial_adapter_tensors_sha256=initial_digest,
        final_adapter_tensors_sha256=live_tensors_sha256(adapter_tensors(model, ADAPTER)),
        base_weights_before_sha256=before,
        base_weights_after_sha256=live_tensors_sha256(base_tensors(model)),
        peak_memory_bytes=peak_memory_bytes(device),
        device_seconds=loop.seconds,
        unchanged_adapter_steps=tuple(counters.unchanged_adapter_steps),
        zero_gradient_steps=tuple(counters.zero_gradient_steps),
        loss_terms={"cross_entropy": cross_entropy} if records is None else observed_terms(counters, device),
        log_history=tuple(logged_rows(state.log_history)),
    )


def _system_prompt(context: RankContext) -> str:
    from explicit_learning.data.prompt import load_system_prompt

    return load_system_prompt(Path(context.manifest.paths.prompt))


def _images(context: RankContext) -> ImageStore:
    from explicit_learning.data.images import ImageStore

    return ImageStore(Path(context.manifest.paths.asset_root))


def _opening_line(context: RankContext, policy: Policy, checkpoint: Path | None) -> str:
    plan = context.manifest.plan
    begin = f"resuming at {checkpoint.name}" if checkpoint else "training"
    return (
        f"{begin}: {plan.arm}, {plan.optimisation.max_steps} steps of {Geometry.of(plan).rows_per_cycle} rows, "
        f"LoRA on {len(policy.targets)} modules"
    )


def _closing_line(loop: Loop) -> str | None:
    if loop.status == "budget_exhausted":
        return "the remaining token budget does not cover another generation cycle"
    return None
