"""Rollouts of the trained model itself: the weights that are trained are those that sample.

Nothing is handed over, and a run can be repeated to the last bit. Sampling happens under the trainer's autocast:
outside it the adapter would be computed in float32.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.training.forwards import sampling
from explicit_learning.training.rollouts.choosers import Forced, Sampled, uniforms
from explicit_learning.training.rollouts.encoded_views import model_inputs
from explicit_learning.training.rollouts.generation import generate_constrained, generate_free
from explicit_learning.training.rollouts.interface import Continuation, SampledRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.training.rollouts.choosers import Chooser
    from explicit_learning.training.rollouts.constraint import Constraint
    from explicit_learning.training.rollouts.encoded_views import EncodedView
    from explicit_learning.training.rollouts.generation import Completions
    from explicit_learning.training.rollouts.interface import LivePolicy
    from explicit_learning.training.rollouts.rows import SlotPrompt
    from explicit_learning.training.step_loop import LoopState

__all__ = ["ExactRollouts", "generating"]


class ExactRollouts:
    """A sampler that is the policy; `Rollouts` describes its methods."""

    def __init__(self, policy: LivePolicy, *, plan: Plan, constraint: Constraint) -> None:
        """Take what is sampled from.

        Args:
            policy: The policy.
            plan: The plan.
            constraint: What may be sampled.
        """
        self._policy = policy
        self._plan = plan
        self._constraint = constraint

    def update(self) -> None:
        """Do nothing: the adapter that is trained is the one that samples."""

    def sample(self, prompts: Sequence[SlotPrompt], views: Sequence[EncodedView]) -> SampledRows:
        """Sample one constrained completion for each row, each from its own stream of numbers.

        Raises:
            FloatingPointError: If the model's logits are not finite.
        """
        generation, each = self._plan.generation, self._plan.generation.num_generations
        numbers = torch.stack(
            [uniforms(prompt.key(self._plan.seed), count=generation.max_completion_tokens) for prompt in prompts]
        )
        shown = views[::each]
        with generating(self._policy):
            sampled = generate_constrained(
                self._policy.model,
                model_inputs(shown, pad_token=self._policy.pad, device=self._policy.device),
                constraint=self._constraint,
                chooser=Sampled(numbers=numbers, temperature=generation.temperature, top_p=generation.top_p),
                max_tokens=generation.max_completion_tokens,
                pad=self._policy.pad,
                temperature=generation.temperature,
                completions=each,
                images=[len(view.image_grid_thw) for view in shown],
            )
        return SampledRows(
            prompt_ids=[view.ids.tolist() for view in views],
            ids=sampled.ids,
            constrained_log_probs=sampled.constrained_log_probs,
            log_probs=sampled.log_probs,
            mass=sampled.mass,
        )

    def score(self, rows: Sequence[Continuation]) -> list[list[float]]:
        """Return the log-probs of completions, computed token by token, as they would be sampled."""
        ids = [row.ids for row in rows]
        generated = self._free([row.view for row in rows], Forced(ids=ids), max_tokens=max(map(len, ids)))
        return [found[: len(row)] for found, row in zip(generated.log_probs, ids, strict=True)]

    def sample_freely(
        self, views: Sequence[EncodedView], keys: Sequence[int], *, max_tokens: int
    ) -> tuple[list[Continuation], list[list[float]]]:
        """Sample one completion of each view without a constraint, at temperature 1; return it with its log-probs."""
        numbers = torch.stack([uniforms(key, count=max_tokens) for key in keys])
        chooser = Sampled(numbers=numbers, temperature=1.0, top_p=1.0)
        generated = self._free(views, chooser, max_tokens=max_tokens)
        return cut_to_text(views, generated.ids, generated.log_probs, forbidden=self._constraint.forbidden)

    def close(self) -> None:
        """End; the sampler has no weights of its own."""

    def _free(self, views: Sequence[EncodedView], chooser: Chooser, *, max_tokens: int) -> Completions:
        with generating(self._policy):
            return generate_free(
                self._policy.model,
                model_inputs(views, pad_token=self._policy.pad, device=self._policy.device),
                terminal=self._constraint.terminal,
                chooser=chooser,
                max_tokens=max_tokens,
                pad=self._policy.pad,
            )


@contextmanager
def generating(
    policy: LivePolicy, *, counting: Callable[[LoopState], AbstractContextManager[None]] = sampling
) -> Iterator[None]:
    """Put a policy into the state in which it generates, and back.

    Args:
        policy: The policy.
        counting: Makes the context in which the forwards are counted.
    """
    from trl.models.utils import disable_gradient_checkpointing

    model: Any = policy.model
    was_training = model.training
    model.eval()
    try:
        # Gradient checkpointing would turn off the cache that generation needs.
        with disable_gradient_checkpointing(model, {"use_reentrant": False}), counting(policy.loop), policy.autocast():
            yield
    finally:
        model.train(was_training)


def cut_to_text(
    views: Sequence[EncodedView],
    ids: Sequence[Sequence[int]],
    log_probs: Sequence[Sequence[float]],
    *,
    forbidden: Sequence[int],
) -> tuple[list[Continuation], list[list[float]]]:
    """Return free samples up to their first forbidden token, those of which nothing is left not at all."""
    rows, scores = [], []
    for view, row, row_scores in zip(views, ids, log_probs, strict=True):
        length = next((index for index, token in enumerate(row) if token in forbidden), len(row))
        if length:
            rows.append(Continuation(view=view, ids=tuple(row[:length])))
            scores.append(list(row_scores[:length]))
    return rows, scores
