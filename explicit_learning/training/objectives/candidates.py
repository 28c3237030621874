"""The answers that a group's views are asked to choose between, as tokens.

A candidate is scored as the model would have to write it: the whole rendered response, then the terminal token.
Rendered strings are tokenised whole, because in this tokenizer family ``>`` and ``</`` fuse with the body: the tokens
of ``<answer>7</answer>`` are not those of its three parts in a row. The tokens that all candidates begin with do not
depend on the choice and are left out; from the first token at which any two differ, all count, the terminal token
included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.answers import ABSTENTION, render_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers import PreTrainedTokenizerBase

__all__ = ["Candidate", "candidate_bodies", "divergence", "tokenise_candidates", "turn_end"]

_BODY_START = len("<answer>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One answer that is scored.

    Attributes:
        body: The answer body.
        ids: Token ids of the rendered answer and the terminal token.
        scored_from: Index of the first token that counts in the score; all later ones do too.
        body_tokens: Indices of the tokens whose characters overlap the body; none for an abstention.
    """

    body: str
    ids: tuple[int, ...]
    scored_from: int
    body_tokens: tuple[int, ...]


def candidate_bodies(full_answer: str, substitutes: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a group's candidates: the full answer, abstention, and every substitute answer, each once."""
    return tuple(dict.fromkeys((full_answer, ABSTENTION, *substitutes)))


def divergence(sequences: Sequence[Sequence[int]]) -> int:
    """Return the first index at which not all sequences have the same token; 0 for one sequence alone.

    Raises:
        ValueError: If one sequence is the beginning of all others: nothing would be left of it to score.
    """
    if len(sequences) == 1:
        return 0
    shortest = min(map(len, sequences))
    for index in range(shortest):
        if len({sequence[index] for sequence in sequences}) > 1:
            return index
    raise ValueError("a candidate is the beginning of all others")


def turn_end(tokenizer: PreTrainedTokenizerBase, terminal: Sequence[int]) -> int:
    """Return the token that ends a candidate: the one that the chat template ends a turn with, as SFT rows do.

    Args:
        tokenizer: The model's tokenizer.
        terminal: The model's whole set of end-of-sequence tokens; its first is taken if that one is not in it.
    """
    eos: int | None = tokenizer.eos_token_id
    return eos if eos is not None and eos in terminal else terminal[0]


def tokenise_candidates(
    bodies: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, terminal: int
) -> tuple[Candidate, ...]:
    """Return candidates as tokens.

    Args:
        bodies: Different answer bodies.
        tokenizer: The model's tokenizer; it must be able to return each token's characters (offsets).
        terminal: The token that ends a response.

    Raises:
        ValueError: If a body cannot be rendered, or two bodies have the same tokens.
    """
    encoded = tokenizer([render_answer(body) for body in bodies], add_special_tokens=False, return_offsets_mapping=True)
    sequences = [(*ids, terminal) for ids in encoded["input_ids"]]
    start = divergence(sequences)
    return tuple(
        Candidate(body=body, ids=ids, scored_from=start, body_tokens=_overlapping(body, spans))
        for body, ids, spans in zip(bodies, sequences, encoded["offset_mapping"], strict=True)
    )


def _overlapping(body: str, spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    if not body:
        return ()
    start, end = _BODY_START, _BODY_START + len(body)
    return tuple(index for index, (first, last) in enumerate(spans) if first < end and last > start)
