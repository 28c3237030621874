"""From a plan to the trainer that runs it: its data, its arguments, and the callback around its steps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PrinterCallback

from explicit_learning.arms import ARMS
from explicit_learning.data.held_out import without_groups
from explicit_learning.data.images import ImageStore
from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.errors import Context
from explicit_learning.inputs.frozen_rows import read_frozen_sft_rows, read_frozen_slots
from explicit_learning.inputs.held_out import read_held_out
from explicit_learning.inputs.sft_pass import sft_order, sft_prefix
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.schedule import Schedule
from explicit_learning.rundir.counters import ValidationCounts
from explicit_learning.training.arguments import grpo_arguments, sft_arguments
from explicit_learning.training.objectives.build import objective_trainer
from explicit_learning.training.rollouts.constraint import compile_constraint
from explicit_learning.training.rollouts.encoded_views import ViewEncoder
from explicit_learning.training.rollouts.interface import LivePolicy
from explicit_learning.training.rollouts.rows import RolloutRows
from explicit_learning.training.rollouts.start import start_rollouts
from explicit_learning.training.sft import OnePassSFTTrainer, SftRows
from explicit_learning.training.step_loop import LoopState, StepCallback
from explicit_learning.training.tokens import loss_token_counts
from explicit_learning.training.trackers import TrackerCallback
from explicit_learning.training.validation import Validator

if TYPE_CHECKING:
    from explicit_learning.inputs.held_out import HeldOut
    from explicit_learning.launch.rank import RankContext
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.training.phases import Phases
    from explicit_learning.training.policy import Policy
    from explicit_learning.training.records import Records
    from explicit_learning.training.rollouts.constraint import Constraint
    from explicit_learning.training.state.checkpointing import CheckpointingTrainer

__all__ = ["build_trainer"]

CONTEXT = Context(gate="data")


def build_trainer(
    context: RankContext, policy: Policy, records: Records | None, checkpoint: Path | None, phases: Phases
) -> CheckpointingTrainer:
    """Return the trainer of the plan's arm.

    Args:
        context: The rank's place in the run.
        policy: The model with its adapter.
        records: The rank's open ledger and trace; ``None`` in SFT arms.
        checkpoint: The checkpoint that is resumed, if any.
        phases: Where the launch's time and memory are counted.

    Raises:
        Refusal: If the data is not what the plan was frozen with.
    """
    manifest = context.manifest
    plan = manifest.plan
    loop = LoopState(
        context=context,
        phases=phases,
        cycle=Geometry.of(plan).iterations,
        budget_is_short=records.budget_is_short if records else bool,
    )
    questions = Path(manifest.paths.validation) if manifest.paths.validation else None
    held_out = read_held_out(questions, plan)
    encoder = ViewEncoder(
        processor=policy.processor,
        images=ImageStore(Path(manifest.paths.asset_root)),
        system=load_system_prompt(Path(manifest.paths.prompt)),
    )
    build = _grpo_trainer if plan.samples else _sft_trainer
    trainer = build(context, policy, loop, records, held_out, encoder)
    if plan.validation is not None:
        loop.counters.validation = ValidationCounts()
        trainer.validator = Validator(
            LivePolicy.of(trainer, pad=int(policy.processor.tokenizer.pad_token_id)),
            plan=plan,
            questions=held_out.questions,
            encoder=encoder,
            tokenizer=policy.processor.tokenizer,
            constraint=_constraint(plan, policy),
        )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(
        StepCallback(loop, trainer.after_step, partial(trainer.restore_counters, checkpoint) if checkpoint else None)
    )
    if context.rank == 0 and manifest.report_to:
        trainer.add_callback(TrackerCallback(manifest, context.say))
    return trainer


def _sft_trainer(  # noqa: PLR0917 - what any trainer is built of
    context: RankContext,
    policy: Policy,
    loop: LoopState,
    records: Records | None,
    held_out: HeldOut,
    encoder: ViewEncoder,
) -> CheckpointingTrainer:
    del encoder
    manifest = context.manifest
    plan, system = manifest.plan, load_system_prompt(Path(manifest.paths.prompt))
    frozen = read_frozen_sft_rows(Path(manifest.paths.dataset), plan)
    rows = sft_order(frozen, arm=plan.arm, data_seed=plan.data_seed, held_out=held_out.groups)
    counted = sft_prefix(
        loss_token_counts(policy.processor, rows, system),
        rows_per_step=Geometry.of(plan).rows_per_cycle,
        max_loss_tokens=plan.budget.max_sft_loss_tokens,
    )
    steps, loss_tokens = plan.optimisation.max_steps, plan.budget.planned_sft_loss_tokens
    if (counted.steps, counted.loss_tokens) != (steps, loss_tokens):
        raise CONTEXT.refusal(
            file=manifest.paths.dataset,
            pointer="/budget/planned_sft_loss_tokens",
            found=f"{counted.steps} steps with {counted.loss_tokens} loss tokens",
            expected=f"{steps} steps with {loss_tokens} loss tokens, as planned",
            fix="freeze the draft again with this data and this model",
        )
    return OnePassSFTTrainer(
        loop=loop,
        records=records,
        model=policy.model,
        args=sft_arguments(context),
        rows=SftRows(rows[: counted.records], system=system, images=ImageStore(Path(manifest.paths.asset_root))),
        left_out=counted.left_out,
        max_prompt_tokens=plan.generation.max_prompt_tokens,
        processing_class=policy.processor,
    )


def _grpo_trainer(  # noqa: PLR0917 - what any trainer is built of
    context: RankContext,
    policy: Policy,
    loop: LoopState,
    records: Records | None,
    held_out: HeldOut,
    encoder: ViewEncoder,
) -> CheckpointingTrainer:
    manifest = context.manifest
    plan = manifest.plan
    slots = without_groups(read_frozen_slots(Path(manifest.paths.dataset), plan), held_out.groups)
    if plan.reward is None:
        raise ValueError(f"the arm {plan.arm} has no reward")
    schedule = Schedule(
        slot_ids=tuple(slot.slot_id for slot in slots),
        data_seed=plan.data_seed,
        geometry=Geometry.of(plan),
        steps=plan.optimisation.max_steps,
    )
    constraint = _constraint(plan, policy)
    trainer, terms = objective_trainer(manifest, slots, processor=policy.processor, encoder=encoder)
    return trainer(
        **terms,
        loop=loop,
        records=records,
        plan=plan,
        weights=plan.reward,
        schedule=schedule,
        rows=RolloutRows(slots, arm=ARMS[plan.arm], schedule=schedule, encoder=encoder),
        constraint=constraint,
        start_rollouts=partial(start_rollouts, manifest, policy, constraint),
        model=policy.model,
        args=grpo_arguments(context),
        processing_class=policy.processor,
    )


def _constraint(plan: Plan, policy: Policy) -> Constraint:
    """Return what the policy may answer."""
    return compile_constraint(
        policy.processor.tokenizer,
        regex=plan.generation.answer_regex,
        vocabulary=policy.model.get_output_embeddings().weight.shape[0],
        terminal=plan.generation.terminal_token_ids,
    )
