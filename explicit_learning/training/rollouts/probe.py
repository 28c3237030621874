"""The agreement probe: whether what samples is the policy that is trained, measured from time to time.

The sampler and the trainer score the same completions: a fixed one (the right answer) of some prompts, and fresh
samples of them. Nothing is masked, and the temperature is 1. So the log-probs would be equal if both computed alike,
and they differ by rounding. The sampler also scores the fixed completions under the adapter before the current one:
its scores must be nearer to the trainer's under the current one, or the probe cannot tell them apart. (One step at a
usual learning rate moves log-probs by less than bfloat16's rounding. That the right version was handed over is what
the engine's read-back shows.)

Its tokens do not belong to the run: ledger and budget do not count them, and all random generators stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.idle_settings import warmup_steps
from explicit_learning.rundir.rank_report import AgreementProbe, SamplerAgreement
from explicit_learning.training.collectives import gather
from explicit_learning.training.float32_head import float32_head
from explicit_learning.training.forwards import uncounted
from explicit_learning.training.rollouts.choosers import stream_key
from explicit_learning.training.rollouts.encoded_views import model_inputs
from explicit_learning.training.rollouts.interface import Scored
from explicit_learning.training.state.random_streams import preserved_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.rank_report import Nearer, ProbeReason
    from explicit_learning.training.rollouts.interface import Continuation, LivePolicy, Rollouts

__all__ = ["Prober", "probe_reason", "require_agreement"]

CONTEXT = Context(gate="agreement", exit_code=ExitCode.INTERNAL)
# The tolerance is so many gaps of the run's start, and at least so much, unless the plan names one. The start's own
# bound lies between rounding (0.002 to 0.02 were seen) and another policy (0.7 and more). Unit: nats.
START_GAPS, LEAST_TOLERANCE, START_TOLERANCE = 3.0, 0.02, 0.1
# Completions of the plan's slots have visits from 0 on: the probe's random streams are none of theirs.
VISIT = -1


def probe_reason(step: int, plan: Plan) -> ProbeReason | None:
    """Return why the sampler is probed after an optimizer step; ``None`` if it is not.

    It depends on the plan alone: a resumed run is probed after the same steps as one that was not interrupted.

    Args:
        step: Optimizer steps done; at least one.
        plan: The plan.
    """
    cycle, interval = Geometry.of(plan).iterations, plan.generation.probe_interval
    if step % cycle:
        return None
    # With a warm-up, the first step has a learning rate of 0: the second one is the first that changes the adapter.
    changed = 2 if warmup_steps(plan.optimisation.max_steps, plan.optimisation.warmup_ratio) else 1
    if step == -(-changed // cycle) * cycle:
        return "first_step"
    return "interval" if step // interval > (step - cycle) // interval else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One rank's differences of one kind. Unit: nats."""

    fixed: list[float]
    fresh: list[float]
    previous: list[float] | None
    effect: list[float] | None


class Prober:
    """Probes one rank's sampler; all ranks probe together."""

    def __init__(self, rollouts: Rollouts, policy: LivePolicy, *, plan: Plan, rows: Sequence[Continuation]) -> None:
        """Take what is compared.

        Args:
            rollouts: The sampler.
            policy: The policy.
            plan: The plan.
            rows: This rank's prompts with their fixed completions; at least two, as a lone row has other bits.
        """
        self._rollouts = rollouts
        self._policy = policy
        self._plan = plan
        self._rows = rows

    def probe(self, step: int, reason: ProbeReason, *, first: AgreementProbe | None) -> AgreementProbe:
        """Compare, on all ranks together, and return what was found over all of them.

        Args:
            step: Optimizer steps done.
            reason: Why now.
            first: The run's first probe, if there was one.
        """
        with preserved_streams(), uncounted(self._policy.loop):
            own = self._compare(step)
        parts: list[_Part] = gather(own, self._plan.hardware.world_size)
        fixed = [value for part in parts for value in part.fixed]
        fresh = [value for part in parts for value in part.fresh]
        mean = fmean([*fixed, *fresh])
        previous = _joined([part.previous for part in parts])
        effect = _joined([part.effect for part in parts])
        nearer = None
        if previous is not None and effect is not None:
            nearer = _nearer(fmean(fixed), fmean(previous), fmean(effect))
        return AgreementProbe(
            step=step,
            reason=reason,
            tokens=len(fixed) + len(fresh),
            mean=mean,
            largest=max([*fixed, *fresh]),
            fixed=_agreement(fixed),
            fresh=_agreement(fresh),
            previous_mean=None if previous is None else fmean(previous),
            effect=None if effect is None else fmean(effect),
            nearer=nearer,
            tolerance=self._tolerance(first),
        )

    def _tolerance(self, first: AgreementProbe | None) -> float:
        named = self._plan.generation.probe_tolerance
        if named is not None:
            return named
        return START_TOLERANCE if first is None else max(START_GAPS * first.mean, LEAST_TOLERANCE)

    def _compare(self, step: int) -> _Part:
        seed, most = self._plan.seed, self._plan.generation.max_completion_tokens
        views = [row.view for row in self._rows]
        trained = trainer_scores(self._policy, self._rows)
        now = self._rollouts.score(self._rows, "current")
        before = self._rollouts.score(self._rows, "previous") if self._rollouts.has_previous else None
        keys = [
            stream_key(seed=seed, slot_id=str(number), visit=VISIT, generation=step) for number in range(len(views))
        ]
        fresh_rows, fresh = self._rollouts.sample_freely(views, keys, max_tokens=most)
        fresh_trained = trainer_scores(self._policy, fresh_rows) if fresh_rows else fresh
        for ours, theirs in ((trained, now), (fresh_trained, fresh)):
            if ours.prompt_ids != theirs.prompt_ids:
                raise CONTEXT.refusal(
                    found="the sampler's prompts have other token ids than the trainer's",
                    expected="the same prompts on both sides",
                    fix="report this as a defect (CONTRIBUTING.md says where)",
                )
        return _Part(
            fixed=_differences(trained, now),
            fresh=_differences(fresh_trained, fresh),
            previous=None if before is None else _differences(trained, before),
            effect=None if before is None else _differences(now, before),
        )


def require_agreement(found: AgreementProbe) -> None:
    """Refuse to go on with a sampler that is not the policy.

    Raises:
        Refusal: If the mean difference is above the tolerance, or the sampler is nearer to the adapter before the
            current one (70).
    """
    faults = []
    figures = f"step {found.step}: mean {found.mean:.4g}, largest {found.largest:.4g} nats over {found.tokens} tokens"
    fix = (
        "the completions since the last probe may be another policy's: report this as a defect (CONTRIBUTING.md says "
        "where) with these figures; to go on, set vllm.use to false, or raise generation.probe_tolerance if the gap "
        "is rounding, and freeze the draft again"
    )
    if not found.mean <= found.tolerance:
        expected = f"a mean difference of log-probs of at most {found.tolerance:.4g} nats between sampler and trainer"
        faults.append(CONTEXT.fault(found=figures, expected=expected, fix=fix))
    if found.nearer == "previous":
        faults.append(
            CONTEXT.fault(
                found=f"{figures}; {found.fixed.mean:.4g} nats from the trainer with the current adapter, "
                f"{found.previous_mean:.4g} with the one before",
                expected="a sampler that is nearer to the trainer with the current adapter",
                fix=fix,
            )
        )
    if faults:
        raise Refusal(faults)


def trainer_scores(policy: LivePolicy, rows: Sequence[Continuation]) -> Scored:
    """Return the trainer's log-probs of completions: whole sequences in one forward, at temperature 1.

    Args:
        policy: The policy.
        rows: Prompts and completions.
    """
    model: Any = policy.model
    views, longest = [row.view for row in rows], max(len(row.ids) for row in rows)
    inputs = model_inputs(views, pad_token=policy.pad, device=policy.device)
    ends = torch.tensor([[*row.ids, *[policy.pad] * (longest - len(row.ids))] for row in rows], device=policy.device)
    shown = torch.tensor([[1] * len(row.ids) + [0] * (longest - len(row.ids)) for row in rows], device=policy.device)
    whole = inputs | {
        "input_ids": torch.cat([inputs["input_ids"], ends], dim=1),
        "attention_mask": torch.cat([inputs["attention_mask"], shown], dim=1),
        "mm_token_type_ids": torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, longest)),
    }
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), policy.autocast(), float32_head(model):
            logits = model(**whole, logits_to_keep=longest + 1, use_cache=False).logits
    finally:
        model.train(was_training)
    log_probs = logits[:, :-1].float().log_softmax(-1).gather(-1, ends[..., None])[..., 0].tolist()
    return Scored(
        prompt_ids=[view.ids.tolist() for view in views],
        log_probs=[found[: len(row.ids)] for found, row in zip(log_probs, rows, strict=True)],
    )


def _differences(one: Scored, two: Scored) -> list[float]:
    """Return the absolute differences of all tokens' log-probs. Unit: nats."""
    return [
        abs(a - b)
        for left, right in zip(one.log_probs, two.log_probs, strict=True)
        for a, b in zip(left, right, strict=True)
    ]


def _agreement(values: list[float]) -> SamplerAgreement:
    return SamplerAgreement(
        tokens=len(values), mean=fmean(values) if values else None, largest=max(values) if values else None
    )


def _joined(parts: Sequence[list[float] | None]) -> list[float] | None:
    return None if any(part is None for part in parts) else [value for part in parts for value in part or ()]


def _nearer(current: float, previous: float, effect: float) -> Nearer:
    """Return which adapter the sampler is nearer to, where the two differ by more than the smaller of the gaps."""
    if effect <= min(current, previous):
        return "cannot_tell"
    return "current" if current < previous else "previous"
