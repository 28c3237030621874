"""The trainer under all RL arms: TRL's GRPO with everything pinned that would make arms or runs differ.

TRL keeps the step: advantages, the clipped objective, the KL to the reference, accumulation. This class owns the rest:
which completion is sampled when (`Schedule`), what samples it (`Rollouts`), how it is scored (`rewards`), what
is recorded (`Records`), and what a checkpoint holds (`CheckpointingTrainer`). Objectives with further terms extend it;
they find a micro-batch's rows in ``inputs``, in the order that TRL shuffled them to.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Sampler
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from explicit_learning.accounting.ratios import MALFORMED_RATIO, RIGHT_RATIO, TRUNCATED_RATIO
from explicit_learning.arms import ARMS
from explicit_learning.launch.outcomes import NonFiniteLossError
from explicit_learning.plan.probes import probe_reason
from explicit_learning.rewards import check_columns, score
from explicit_learning.rundir.events import append_event
from explicit_learning.rundir.rank_report import RolloutReport
from explicit_learning.training.collectives import gather, sum_over_ranks
from explicit_learning.training.objectives.loss_term_check import check_term, declare_terms
from explicit_learning.training.prompt_limit import refuse_long_prompt
from explicit_learning.training.records import Completion
from explicit_learning.training.rollouts.agreement import Agreement, allowed_mass, compare_log_probs
from explicit_learning.training.rollouts.encoded_views import model_inputs
from explicit_learning.training.rollouts.history import AdapterHistory
from explicit_learning.training.rollouts.interface import LivePolicy
from explicit_learning.training.rollouts.probe import Prober, require_agreement
from explicit_learning.training.state.checkpointing import CheckpointingTrainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from explicit_learning.plan.probes import ProbeReason
    from explicit_learning.plan.schedule import Schedule
    from explicit_learning.plan.typed_plan import Plan, Reward
    from explicit_learning.training.rollouts.constraint import Constraint
    from explicit_learning.training.rollouts.encoded_views import EncodedView
    from explicit_learning.training.rollouts.generation import AllowedMass
    from explicit_learning.training.rollouts.interface import Rollouts
    from explicit_learning.training.rollouts.rows import RolloutRows, SlotPrompt

__all__ = ["AlignedGRPOTrainer"]

IMAGE_FIELDS = ("pixel_values", "image_grid_thw", "mm_token_type_ids")


class _ScheduleSampler(Sampler[int]):
    """The run's row indices, in order; resuming skips whole batches of them without building their rows."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def __iter__(self) -> Iterator[int]:
        return self._schedule.row_indices()

    def __len__(self) -> int:
        return len(self._schedule)


def _answer(**_: Any) -> list[float]:
    """Give the reward its name in TRL's metrics; `_calculate_rewards` does the scoring."""
    raise AssertionError("completions are scored by AlignedGRPOTrainer")


_answer.__name__ = "answer"


class AlignedGRPOTrainer(CheckpointingTrainer, GRPOTrainer):
    """GRPO on comparison slots."""

    def __init__(
        self,
        *,
        plan: Plan,
        weights: Reward,
        schedule: Schedule,
        rows: RolloutRows,
        constraint: Constraint,
        start_rollouts: Callable[[LivePolicy], Rollouts],
        **kwargs: Any,
    ) -> None:
        self._plan = plan
        self._weights = weights
        self._schedule = schedule
        self._constraint = constraint
        self._slot_prompts: list[SlotPrompt] = []
        self._views: list[EncodedView] = []
        self._image_fields: dict[str, Any] = {}
        self._policy_log_probs: torch.Tensor | None = None
        self._scores_are_whole = True
        super().__init__(reward_funcs=[_answer], rows=rows, **kwargs)
        # Again, over TRL's own: its setting for a head in float32 would turn the base model's weight into float32.
        add_fused_lm_head(
            self.accelerator.unwrap_model(self.model).get_base_model(),
            temperature=self.temperature,
            cast_lm_head_to_fp32=True,
            outputs=("log_probs", "entropy"),
        )
        # TRL would add the tokenizer's own; what ends a completion is frozen in the plan.
        self.eos_token_ids = list(constraint.terminal)
        declare_terms(self.loop.counters, ARMS[plan.arm])
        policy = LivePolicy.of(self, pad=self._pad_token)
        self._rollouts = start_rollouts(policy)
        self._history = AdapterHistory(policy.model)
        fixed = rows.probe_rows(self._tokenizer, rank=self.loop.context.rank)
        self._prober = Prober(self._rollouts, policy, self._history, plan=plan, rows=fixed)
        self._probed = False

    # --- data -----------------------------------------------------------------------------------------------------

    def loader_batch_size(self) -> int:
        """Return a rank's rows per generation cycle: TRL asks for all of them at once."""
        return self._schedule.geometry.rows_per_rank

    def row_sampler(self) -> Sampler[int]:
        """Return the schedule's order over all ranks."""
        return _ScheduleSampler(self._schedule)

    def restore_counters(self, folder: Path) -> None:
        """Take over a checkpoint's counters, TRL's count of backward passes among them."""
        self._step = self.state.global_step * self.args.gradient_accumulation_steps
        super().restore_counters(folder)

    # --- rollouts -------------------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not all(inputs):
            raise AssertionError("the run started inside a generation cycle, whose rows were sampled earlier")
        self._slot_prompts = [row["slot_prompt"] for row in inputs]
        self._views = [row["encoded_view"] for row in inputs]
        visits = {(prompt.rollout.slot_id, prompt.rollout.visit) for prompt in self._slot_prompts}
        self.loop.counters.records += len(visits)
        try:
            self._update_sampler()
            self._probe_before_cycle()
            with self.loop.phases.phase("rollout"):
                output: dict[str, Any] = super()._generate_and_score_completions(inputs)
                output |= self._fields_of_images(output["completion_ids"].shape[1])
        except FloatingPointError as error:
            raise NonFiniteLossError(self.state.global_step + 1, math.nan) from error
        self._views, self._image_fields = [], {}
        return output | {"slot_prompt": list(self._slot_prompts)}

    def _fields_of_images(self, completion_length: int) -> dict[str, Any]:
        """Return what TRL would have made of the rows' images: its own rows have none (see `RolloutRows`)."""
        kinds = self._image_fields["mm_token_type_ids"]
        whole = torch.nn.functional.pad(kinds, (0, completion_length))
        return self._image_fields | {"mm_token_type_ids": whole}

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Return the ids of the rows' prompts, which are encoded already."""
        del prompts
        return [view.ids.tolist() for view in self._views], None, {}

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *_: Any, **__: Any
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Sample one constrained completion per row."""
        self._refuse_long_prompts(prompt_ids)
        sampled = self._rollouts.sample(self._slot_prompts, self._views)
        if sampled.mass is not None:
            self._log_mass(sampled.mass)
        self._scores_are_whole = sampled.log_probs is not None
        rows = model_inputs(self._views, pad_token=self._pad_token, device=self.accelerator.device)
        self._image_fields = {name: rows[name] for name in IMAGE_FIELDS} | {
            "num_images": [len(view.image_grid_thw) for view in self._views]
        }
        return sampled.ids, sampled.constrained_log_probs if sampled.log_probs is None else sampled.log_probs

    def _probe_before_cycle(self) -> None:
        """Compare sampler and trainer before the first cycle of a launch."""
        if self._probed:
            return
        self._probed = True
        self._probe("resume" if self.state.global_step else "start")

    def after_step(self) -> None:
        """Compare sampler and trainer after a step, and validate, each if it is time to."""
        if reason := probe_reason(self.state.global_step, self._plan):
            self._update_sampler()
            self._probe(reason)
        super().after_step()

    def _update_sampler(self) -> None:
        """Let the sampler take over the adapter as it is now."""
        with self.loop.phases.phase("rollout"):
            self._history.update()
            self._rollouts.update()

    def _probe(self, reason: ProbeReason) -> None:
        """Compare sampler and trainer, and record what was found.

        Raises:
            Refusal: If the sampler is not the policy that is trained (70).
        """
        context, counters = self.loop.context, self.loop.counters
        with self.loop.phases.phase("probe"):
            first = counters.probes[0] if counters.probes else None
            found = self._prober.probe(self.state.global_step, reason, first=first)
        if context.rank == 0:
            append_event(context.manifest.run, "probe", found)
        if reason == "resume":
            self.loop.resume_probe = found
        else:
            counters.probes += (found,)
            self._metrics["train"]["probe/mean"].append(found.mean)
            self._metrics["train"]["probe/max"].append(found.largest)
        require_agreement(found)

    def rollout_report(self) -> RolloutReport:
        """Return what sampled, and end it."""
        digests = self._rollouts.close()
        return RolloutReport(
            engine="exact" if digests is None else "vllm",
            engine_base_before_sha256=None if digests is None else digests["before"],
            engine_base_after_sha256=None if digests is None else digests["after"],
            probes=self.loop.counters.probes,
            resume_probe=self.loop.resume_probe,
        )

    def _refuse_long_prompts(self, prompt_ids: list[list[int]]) -> None:
        limit = self._plan.generation.max_prompt_tokens
        for ids, prompt in zip(prompt_ids, self._slot_prompts, strict=True):
            refuse_long_prompt(prompt.rollout.slot_id, len(ids), limit=limit)

    @property
    def _pad_token(self) -> int:
        return int(self._tokenizer.pad_token_id)

    def _log_mass(self, mass: AllowedMass) -> None:
        ranks = gather((mass.tokens, mass.total, mass.least), self._schedule.geometry.ranks)
        tokens = sum(count for count, _, _ in ranks)
        if not tokens:
            return
        self._metrics["train"]["constraint/allowed_mass_mean"].append(sum(part for _, part, _ in ranks) / tokens)
        self._metrics["train"]["constraint/allowed_mass_min"].append(min(least for _, _, least in ranks))

    # --- loss -----------------------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return GRPO's own loss of a backward pass, and record whether it has a gradient.

        It has none where all completions of each group have one reward.
        """
        loss: torch.Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call] # TRL names no types here
        if self._policy_log_probs is None:
            raise AssertionError("the policy loss did not score the sampled tokens")
        check_term(self.loop.counters, "policy", loss, [self._policy_log_probs])
        passes = self._schedule.geometry.accumulation
        if self._step % (passes * self._schedule.geometry.iterations) < passes:
            sampler, mask = inputs["sampling_per_token_logps"], inputs["completion_mask"]
            if self._scores_are_whole:
                self._log_agreement(compare_log_probs(sampler, self._policy_log_probs, mask))
            elif self._plan.generation.top_p == 1:  # else the sampler's log-probs are those inside the nucleus
                self._log_mass(allowed_mass(sampler, self._policy_log_probs, mask))
        return loss

    def _log_agreement(self, found: Agreement) -> None:
        """Log how far sampler and trainer agree, over all ranks, before the policy's first update in a cycle."""
        ranks = gather((found.tokens, found.total, found.largest), self._schedule.geometry.ranks)
        both = Agreement(
            tokens=sum(tokens for tokens, _, _ in ranks),
            total=sum(total for _, total, _ in ranks),
            largest=max(largest for _, _, largest in ranks),
        )
        counters = self.loop.counters
        counters.compared_tokens += both.tokens
        counters.log_prob_differences += both.total
        counters.largest_log_prob_difference = max(counters.largest_log_prob_difference, both.largest)
        if both.tokens:
            self._metrics["train"]["agreement/mean"].append(both.total / both.tokens)
            self._metrics["train"]["agreement/max"].append(both.largest)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: torch.Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        if self._image_fields:  # scored inside TRL's own rollout, which knows of no images
            kwargs |= self._fields_of_images(logits_to_keep)
        with self.loop.phases.phase("score"):
            scored = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
            )
        self.loop.counters.scored_tokens += int(attention_mask[:, -logits_to_keep:].sum())
        if scored[0].requires_grad:
            self._policy_log_probs = scored[0]
        return scored

    # --- rewards --------------------------------------------------------------------------------------------------

    def _calculate_rewards(
        self,
        inputs: list[dict[str, Any]],
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids_list: list[list[int]],
    ) -> torch.Tensor:
        """Score and record this rank's completions; return all ranks' rewards, shape (completions, 1).

        A truncated completion's reward is NaN here; TRL leaves it out of the group's baseline.
        """
        slot_prompts = [row["slot_prompt"] for row in inputs]
        check_columns(
            len(slot_prompts), {"prompts": prompts, "completions": completions, "completion_ids": completion_ids_list}
        )
        scored = [
            self._scored_completion(prompt, ids) for prompt, ids in zip(slot_prompts, completion_ids_list, strict=True)
        ]
        if self.records is None:
            raise AssertionError("an RL arm has a ledger and a trace")
        self.records.append(scored, optimizer_step=self.state.global_step)
        rewards = torch.tensor(
            [[item.score.total if item.score.in_baseline else torch.nan] for item in scored],
            dtype=torch.float32,
            device=self.accelerator.device,
        )
        gathered: torch.Tensor = self.accelerator.gather(rewards)
        self._count_completions(scored, gathered)
        return gathered

    def _scored_completion(self, prompt: SlotPrompt, ids: list[int]) -> Completion:
        text = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        terminated = ids[-1] in self._constraint.terminal
        result = score(
            text,
            terminated=terminated,
            gold=prompt.gold,
            answer_type=prompt.answer_type,
            choices=prompt.choices,
            weights=self._weights,
        )
        return Completion(prompt=prompt, ids=tuple(ids), text=text, terminated=terminated, score=result)

    def _count_completions(self, scored: list[Completion], rewards: torch.Tensor) -> None:
        """Add up over all ranks the counts that are reported beside the mean reward."""
        malformed, truncated, right = sum_over_ranks(
            [
                sum(not item.score.valid for item in scored),
                sum(not item.terminated for item in scored),
                sum(item.score.components["answer"] > 0 for item in scored),
            ],
            self.accelerator.device,
        )
        groups = rewards.view(-1, self._schedule.geometry.generations)
        least = groups.nan_to_num(nan=torch.inf).amin(dim=1)
        most = groups.nan_to_num(nan=-torch.inf).amax(dim=1)
        flat = int((least >= most).sum())
        counters = self.loop.counters
        counters.malformed += malformed
        counters.truncated += truncated
        counters.zero_variance_groups += flat
        metrics = self._metrics["train"]
        count = rewards.shape[0]
        metrics[MALFORMED_RATIO].append(malformed / count)
        metrics[TRUNCATED_RATIO].append(truncated / count)
        metrics[RIGHT_RATIO].append(right / count)
        metrics["groups/zero_variance"].append(float(flat))
