"""How far the log-probs of sampled tokens agree between the sampler and the trainer.

GRPO takes both for those of one policy. They are computed by different forwards (token by token with a cache, and whole
sequences with padding), so they differ by rounding. Where they differ by more, the gradient belongs to another policy
than the one that sampled. LoRA dropout also counts: it acts in the trainer's forward only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.training.rollouts.generation import AllowedMass

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Agreement", "allowed_mass", "compare_log_probs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Absolute differences of log-probs. Unit: nats.

    Attributes:
        tokens: Tokens that were compared.
        total: Sum of the differences.
        largest: The largest difference; 0 if no token was compared.
    """

    tokens: int
    total: float
    largest: float


def compare_log_probs(sampler: Tensor, trainer: Tensor, mask: Tensor) -> Agreement:
    """Compare the log-probs of the same tokens.

    Args:
        sampler: Log-probs as sampled, under the whole vocabulary at the sampling temperature; shape (rows, tokens).
        trainer: Log-probs that the loss is made of; same shape.
        mask: 1 at the tokens to compare; same shape.
    """
    chosen = mask.bool()
    difference = (sampler.double() - trainer.detach().double()).abs()[chosen]
    if not difference.numel():
        return Agreement(tokens=0, total=0.0, largest=0.0)
    return Agreement(tokens=difference.numel(), total=float(difference.sum()), largest=float(difference.max()))


def allowed_mass(sampler: Tensor, trainer: Tensor, mask: Tensor) -> AllowedMass:
    """Return the allowed mass that follows from a sampler's log-probs among the allowed tokens only.

    A token's probability among the allowed ones is its whole probability divided by their mass. Both are rounded
    differently, so a mass can seem to be above 1; it counts as 1.

    Args:
        sampler: Log-probs among the allowed tokens, at the sampling temperature; shape (rows, tokens).
        trainer: Log-probs under the whole vocabulary, at that temperature; same shape.
        mask: 1 at the tokens that count; same shape.
    """
    mass = AllowedMass()
    mass.add((trainer.detach().double() - sampler.double()).exp().clamp(max=1.0)[mask.bool()])
    return mass
