"""Means over sampled tokens, taken as the policy loss takes them.

If a term were averaged in another way than the policy loss, its weight would change with the batch: with the lengths of
the completions, the number of backward passes and the number of ranks. So every added mean over tokens uses the
normaliser of the plan's ``loss_type`` as TRL 1.16.0 defines it; a test compares it with TRL's own loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LossType", "TokenMean"]

LossType = Literal["grpo", "dr_grpo", "dapo", "bnpo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMean:
    """How one backward pass's token values become its share of a mean.

    The shares of all backward passes of an optimizer step, averaged over ranks as DDP averages gradients, are the mean
    of the whole step. The loss type decides which mean: ``dapo`` weighs every token of the step alike; ``dr_grpo``
    divides by the largest possible number of tokens; ``grpo`` weighs every completion of a backward pass alike (one
    without loss tokens counts as 0); ``bnpo`` weighs every token of a backward pass alike.

    Attributes:
        loss_type: The plan's loss type.
        accumulation: Backward passes per optimizer step.
        max_completion_tokens: The plan's limit, for ``dr_grpo``.
        step_tokens: Tokens with a loss in the whole optimizer step, over all ranks, for ``dapo``; a 0-dimensional
            tensor.
        ranks: Number of ranks, for ``dapo``.
    """

    loss_type: LossType
    accumulation: int
    max_completion_tokens: int
    step_tokens: Tensor
    ranks: int

    def __call__(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return this backward pass's share of the mean; a 0-dimensional tensor.

        Args:
            values: Shape (rows, tokens), floating point; values where the mask is 0 have no influence, not even through
                their gradient.
            mask: Shape (rows, tokens), 1 where a token has a loss; all 0 in the rows of truncated completions.
        """
        kept = values.masked_fill(mask == 0, 0.0)
        if self.loss_type == "dapo":
            return kept.sum() / (self.step_tokens.clamp(min=1.0) / self.ranks)
        if self.loss_type == "dr_grpo":
            share = kept.sum() / (values.shape[0] * self.max_completion_tokens)
        elif self.loss_type == "bnpo":
            share = kept.sum() / mask.sum().clamp(min=1.0)
        else:
            share = (kept.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
        return share / self.accumulation
