"""From token ids back to a completion's text, without transformers.

Training decodes with transformers, which hands the ids to the same library. Whoever checks a trace later has neither a
GPU nor transformers, and must get the same text: a test compares the two, also for characters that a completion cuts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.preflight_tokens import load_tokenizer, special_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

__all__ = ["Decoder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A model's tokenizer, for decoding.

    Attributes:
        tokenizer: The tokenizer; the tokens that the model's settings name are special, as in transformers.
        known: Every id that stands for a token.
    """

    tokenizer: Tokenizer
    known: frozenset[int]

    @classmethod
    def of_model(cls, folder: Path) -> Decoder:
        """Read the tokenizer of a model folder.

        Raises:
            ModuleNotFoundError: If the package tokenizers is not installed.
            Refusal: If a file of the tokenizer is missing, or cannot be read.
        """
        tokenizer = load_tokenizer(folder / "tokenizer.json")
        tokenizer.add_special_tokens(list(special_tokens(folder / "tokenizer_config.json").values()))
        return cls(tokenizer=tokenizer, known=frozenset(tokenizer.get_vocab(with_added_tokens=True).values()))

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of known ids, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)
