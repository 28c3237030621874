"""The output layer in float32, so that sampler and trainer give a token the same log-prob.

Under autocast a bfloat16 model's logits are rounded to bfloat16: to 8 bits, which is about 0.1 at a logit of 20. Few
tokens are sampled, so their logits can be computed without that rounding. The layer's weight stays as it is: it is
turned into float32 in pieces.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["float32_head", "float32_log_probs", "float32_logits"]

# Rows of the weight that are float32 at one time: 4 MB for a hidden size of 2048, which stay in a processor's cache. A
# position of 248,320 rows takes a core 0.2 s; with pieces of 32,768 rows it takes 0.4 s, and gives the same bits.
PIECE = 512
# Rows of the vocabulary that TRL computes logits of at one time: what its own trainers use.
CHUNK = 32768


def float32_logits(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return an output layer's logits, from the values that it is given, without rounding them to another type.

    Args:
        hidden: Final hidden states; shape (..., features), any floating-point type.
        weight: The layer's weight; shape (vocabulary, features), any floating-point type.

    Returns:
        Shape (..., vocabulary), float32.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        if weight.is_cuda and hidden.dtype == weight.dtype == torch.bfloat16:
            # Products of bfloat16 are exact in float32, where they are summed.
            flat = torch.mm(hidden.reshape(-1, hidden.shape[-1]), weight.t(), out_dtype=torch.float32)
            return flat.view(*hidden.shape[:-1], -1)
        exact = hidden.float()
        pieces = [torch.nn.functional.linear(exact, piece.float()) for piece in weight.split(PIECE)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)


def float32_log_probs(hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the log-probs of tokens, with logits as `float32_logits` computes them, without keeping the logits.

    TRL's function for its own trainers does it, a piece of the vocabulary at a time; its backward pass computes the
    logits again.

    Args:
        hidden: Final hidden states that predict the tokens; shape (..., features).
        weight: The output layer's weight; shape (vocabulary, features).
        ids: The tokens; shape (...,).

    Returns:
        Shape (...,), float32; differentiable in the hidden states.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        flat = hidden.float().reshape(-1, hidden.shape[-1])
        log_probs: torch.Tensor = ChunkedLogProbFunction.apply(
            flat, weight, None, ids.reshape(-1), 1.0, CHUNK, None, 1.0, ()
        )[0]
    return log_probs.view(ids.shape)


@contextmanager
def float32_head(model: Any) -> Iterator[None]:
    """Compute a model's output layer in float32 inside.

    Args:
        model: The model, wrapped or not; its output layer has no bias and no adapter.
    """
    head = model.get_output_embeddings()
    if head.bias is not None:
        raise AssertionError("the output layer has a bias, which would be left out")
    head.forward = lambda hidden: float32_logits(hidden, head.weight)
    try:
        yield
    finally:
        del head.forward
