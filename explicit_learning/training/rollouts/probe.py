"""The agreement probe: whether what samples is the policy that is trained, measured from time to time.

The sampler and the trainer score the same completions: a fixed one (the right answer) of some prompts, and fresh
samples of them. Nothing is masked, and the temperature is 1. So the log-probs would be equal if both computed alike,
and they differ by rounding. The trainer also scores them with the adapter before the current one. Where both adapters
differ by clearly more than rounding, the sampler must be nearer to the current one; elsewhere the probe cannot tell.
(One step at a usual learning rate moves log-probs by less than bfloat16's rounding. That the right version was handed
over is what the engine's read-back shows.)

Its tokens do not belong to the run: ledger and budget do not count them, and all random generators stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.plan.probes import probe_tolerance
from explicit_learning.rundir.rank_report import AgreementProbe, SamplerAgreement
from explicit_learning.training.collectives import gather
from explicit_learning.training.float32_head import float32_head
from explicit_learning.training.forwards import uncounted
from explicit_learning.training.rollouts.choosers import stream_key
from explicit_learning.training.rollouts.encoded_views import model_inputs
from explicit_learning.training.state.random_streams import preserved_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.plan.probes import ProbeReason
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.rank_report import Nearer
    from explicit_learning.training.rollouts.history import AdapterHistory
    from explicit_learning.training.rollouts.interface import Continuation, LivePolicy, Rollouts

__all__ = ["Prober", "require_agreement"]

CONTEXT = Context(gate="agreement", exit_code=ExitCode.INTERNAL)
# Completions of the plan's slots have visits from 0 on: the probe's random streams are none of theirs.
VISIT = -1
# The adapters must differ by so many times the smaller gap, before it counts to which of them the sampler is nearer: a
# sampler that has the one is then at least twice as far from the other.
CLEAR = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One rank's differences: of fixed completions, of fresh samples, and of both with the adapter before. In nats."""

    fixed: list[float]
    fresh: list[float]
    previous: list[float] | None
    effect: list[float] | None


class Prober:
    """Probes one rank's sampler; all ranks probe together."""

    def __init__(
        self,
        rollouts: Rollouts,
        policy: LivePolicy,
        history: AdapterHistory,
        *,
        plan: Plan,
        rows: Sequence[Continuation],
    ) -> None:
        """Take what is compared.

        Args:
            rollouts: The sampler.
            policy: The policy.
            history: The policy's adapter, now and before.
            plan: The plan.
            rows: This rank's prompts with their fixed completions; at least two, as a lone row has other bits.
        """
        self._rollouts = rollouts
        self._policy = policy
        self._history = history
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
        return AgreementProbe(
            step=step,
            reason=reason,
            tokens=len(fixed) + len(fresh),
            mean=mean,
            largest=max([*fixed, *fresh]),
            fixed=_agreement(fixed),
            fresh=_agreement(fresh),
            previous_mean=previous,
            effect=effect,
            nearer=None if previous is None or effect is None else _nearer_adapter(mean, previous, effect),
            tolerance=probe_tolerance(self._plan, first=None if first is None else first.mean),
        )

    def _compare(self, step: int) -> _Part:
        seed, most = self._plan.seed, self._plan.generation.max_completion_tokens
        views = [row.view for row in self._rows]
        keys = [
            stream_key(seed=seed, slot_id=str(number), visit=VISIT, generation=step) for number in range(len(views))
        ]
        fresh_rows, fresh = self._rollouts.sample_freely(views, keys, max_tokens=most)
        rows, theirs = [*self._rows, *fresh_rows], [*self._rollouts.score(self._rows), *fresh]
        ours = trainer_scores(self._policy, rows)
        previous = effect = None
        if self._history.has_previous:
            with self._history.previous():
                before = trainer_scores(self._policy, rows)
            previous, effect = _differences(theirs, before), _differences(ours, before)
        count = len(self._rows)
        return _Part(
            fixed=_differences(theirs[:count], ours[:count]),
            fresh=_differences(theirs[count:], ours[count:]),
            previous=previous,
            effect=effect,
        )


def require_agreement(found: AgreementProbe) -> None:
    """Refuse to go on with a sampler that is not the policy.

    Raises:
        Refusal: If the mean difference is above the tolerance, or the sampler is nearer to the adapter before the
            current one (70).
    """
    faults = []
    figures = f"step {found.step}: mean {found.mean:.4g}, largest {found.largest:.4g} nats over {found.tokens} tokens"
    if not found.mean <= found.tolerance:
        expected = f"a mean difference of log-probs of at most {found.tolerance:.4g} nats between sampler and trainer"
        fix = (
            "compare with the earlier probes in events.jsonl: if the gap grew slowly, it is rounding, and a larger "
            "generation.probe_tolerance accepts it; if it jumped, the completions since then are another policy's, and "
            "this is a defect to report (CONTRIBUTING.md says where)"
        )
        faults.append(CONTEXT.fault(found=figures, expected=expected, fix=fix))
    if found.nearer == "previous":
        faults.append(
            CONTEXT.fault(
                found=f"{figures}; but {found.previous_mean:.4g} from the trainer with the adapter before, which is "
                f"{found.effect:.4g} from the current one",
                expected="a sampler that is nearer to the trainer with the current adapter",
                fix="report this as a defect, with these figures (CONTRIBUTING.md says where): the sampler goes on "
                "with an old adapter",
            )
        )
    if faults:
        raise Refusal(faults)


def trainer_scores(policy: LivePolicy, rows: Sequence[Continuation]) -> list[list[float]]:
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
    return [found[: len(row.ids)] for found, row in zip(log_probs, rows, strict=True)]


def _differences(one: Sequence[list[float]], two: Sequence[list[float]]) -> list[float]:
    """Return the absolute differences of all tokens' log-probs. Unit: nats."""
    return [abs(a - b) for left, right in zip(one, two, strict=True) for a, b in zip(left, right, strict=True)]


def _agreement(values: list[float]) -> SamplerAgreement:
    return SamplerAgreement(
        tokens=len(values), mean=fmean(values) if values else None, largest=max(values) if values else None
    )


def _joined(parts: Sequence[list[float] | None]) -> float | None:
    """Return the mean over all ranks; ``None`` if one has nothing to compare."""
    return None if any(part is None for part in parts) else fmean(value for part in parts for value in part or ())


def _nearer_adapter(current: float, previous: float, effect: float) -> Nearer:
    """Return which adapter the sampler is nearer to, if the two are clearly apart.

    Args:
        current: Mean difference between the sampler and the trainer with the current adapter.
        previous: The same with the adapter before.
        effect: Mean difference between the trainer with both.
    """
    if effect <= CLEAR * min(current, previous):
        return "cannot_tell"
    return "current" if current < previous else "previous"
