"""The answer contract as a grammar, compiled for one tokenizer and one model.

A sampled image token makes a run fail ("image features and image tokens do not match"), and free text earns no reward,
so only tokens that can continue a valid answer may be sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.training.rollouts.grammar_cache import compiled_grammar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xgrammar
    from transformers import PreTrainedTokenizerBase

__all__ = ["Constraint", "compile_constraint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A compiled answer grammar for one tokenizer and one model.

    Attributes:
        grammar: xgrammar's compiled form.
        vocabulary: Rows of the model's output layer, padding rows included.
        terminal: Token ids that end a completion.
        forbidden: Special token ids that may never be sampled, whatever their text is.
    """

    grammar: xgrammar.CompiledGrammar
    vocabulary: int
    terminal: tuple[int, ...]
    forbidden: tuple[int, ...]


def compile_constraint(
    tokenizer: PreTrainedTokenizerBase, *, regex: str, vocabulary: int, terminal: Sequence[int]
) -> Constraint:
    """Compile the answer contract for a tokenizer.

    Args:
        tokenizer: The model's tokenizer.
        regex: What a completion must match, terminal token excluded.
        vocabulary: Rows of the model's output layer.
        terminal: The model's whole set of end-of-sequence tokens.
    """
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=vocabulary, stop_token_ids=list(dict.fromkeys(terminal))
    )
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    return Constraint(
        grammar=compiled_grammar(info, regex),
        vocabulary=vocabulary,
        terminal=tuple(dict.fromkeys(terminal)),
        forbidden=tuple(sorted(special - set(terminal))),
    )
