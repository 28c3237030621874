"""How the next token of a row is chosen from its logits.

The ordinary sampler draws from one generator for the whole batch: a completion would then depend on its neighbours, and
a run that resumes would sample something else. Here each completion has its own stream of uniform numbers, keyed by
(seed, slot, visit, generation). A token is drawn by inverting the cumulated distribution at the next number, which is
exact sampling from the tempered, top-p distribution.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["Chooser", "Forced", "Greedy", "Sampled", "stream_key", "uniforms"]

# Probabilities are multiples of 1 / RESOLUTION: rarer tokens are never drawn.
RESOLUTION = 2**52


def stream_key(*, seed: int, slot_id: str, visit: int, generation: int) -> int:
    """Return the number that a completion's random stream begins with: a signed integer of 64 bits.

    It depends on the four keys and on nothing else: not on the batch, the rank, the step or the device.
    """
    key = hashlib.sha256(f"{seed}\0{slot_id}\0{visit}\0{generation}".encode()).digest()
    return int.from_bytes(key[:8], "big", signed=True)


def uniforms(key: int, *, count: int) -> Tensor:
    """Return the numbers in [0, 1) of the stream of a key; shape (count,), float64."""
    import torch

    generator = torch.Generator().manual_seed(key)
    return torch.rand(count, generator=generator, dtype=torch.float64)


class Greedy:
    """Chooses the most probable allowed token."""

    def choose(self, logits: Tensor, step: int) -> Tensor:
        """Return token ids; shapes (rows, vocabulary) and (rows,)."""
        del step
        return logits.argmax(dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """Chooses the tokens that it is given, to have their log-probs.

    Attributes:
        ids: Each row's tokens; a row that is shorter than others repeats its last one.
    """

    ids: Sequence[Sequence[int]]

    def choose(self, logits: Tensor, step: int) -> Tensor:
        """Return token ids; shapes (rows, vocabulary) and (rows,)."""
        import torch

        return torch.tensor([row[min(step, len(row) - 1)] for row in self.ids], device=logits.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Draws each row's token with that row's own next uniform number.

    Attributes:
        numbers: Uniform numbers; shape (rows, steps), float64, on the CPU.
        temperature: Divides the logits.
        top_p: Mass of the nucleus that is kept; 1 keeps everything.
    """

    numbers: Tensor
    temperature: float
    top_p: float

    def choose(self, logits: Tensor, step: int) -> Tensor:
        """Return token ids; shapes (rows, vocabulary) and (rows,)."""
        import torch

        # Whole numbers: their sums are exact in any order, and so the same on every device and in every run.
        weights = (torch.softmax(logits.double() / self.temperature, dim=-1) * RESOLUTION).long()
        if self.top_p < 1.0:
            weights = _nucleus(weights, self.top_p)
        cumulated = weights.cumsum(dim=-1)
        total = cumulated[:, -1]
        target = (self.numbers[:, step].to(total.device) * total).long()
        # A product that rounds up to the total would lie behind the last token.
        target = torch.minimum(target, total - 1)
        return torch.searchsorted(cumulated, target[:, None], right=True).squeeze(-1)


def _nucleus(weights: Tensor, top_p: float) -> Tensor:
    """Zero everything outside the smallest set of tokens whose share reaches ``top_p``; shape (rows, vocabulary)."""
    ordered, index = weights.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    outside = before >= top_p * weights.sum(dim=-1, keepdim=True)
    return weights.masked_fill(outside.gather(-1, index.argsort(dim=-1)), 0)


Chooser = Greedy | Forced | Sampled
