"""The tiny model's tokenizer: Qwen3.5's class, pre-tokeniser pattern and special tokens over a small vocabulary.

The difficulties with tokens come from the pattern, not from the size of the vocabulary: ``>`` fuses with a body's first
letters and with ``</``, and digits stay alone. The pattern is the class's own, so it cannot differ from the real one;
merges are learnt from the texts that the model will read and write.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from explicit_learning.data.digits.canvas import PLACES
from explicit_learning.data.digits.items import KINDS, answer_to
from explicit_learning.files.resources import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import Qwen3_5Tokenizer

__all__ = ["SPECIAL_TOKENS", "make_tokenizer", "tokenizer_of"]

# Qwen3.5's control tokens that can occur in prompts or in checks, in Qwen's order.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# Added tokens that are not control tokens, and so survive decoding, as in Qwen3.5.
PLAIN_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
VOCABULARY = 512
REPEATS = 100


def corpus() -> Iterator[str]:
    """Yield the texts that merges are learnt from: the system text, questions, choices and answers."""
    yield from [(PROMPTS / "common_system.txt").read_text()] * REPEATS
    for place in PLACES:
        yield from [
            f"Which digit is in the {place} cell?",
            f"Is the digit in the {place} cell larger than 5?",
            f"How large is the digit in the {place} cell?",
            "\n\nChoices:\nA. 0 to 2\nB. 3 to 5\nC. 6 or 7\nD. 8 or 9",
        ] * REPEATS
    yield from ["system\n", "user\n", "assistant\n"] * REPEATS
    bodies = ["", *sorted({answer_to(kind, digit) for kind in KINDS for digit in range(10)})]
    yield from [f"<answer>{body}</answer>" for body in bodies] * REPEATS


def make_tokenizer(chat_template: str) -> Qwen3_5Tokenizer:
    """Learn the merges and return the tokenizer with its special tokens and chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen3_5Tokenizer

    # The training uses the normaliser and pre-tokeniser of an empty instance.
    pattern = Qwen3_5Tokenizer(vocab={"<|endoftext|>": 0}, merges=[]).backend_tokenizer
    learner = Tokenizer(models.BPE())
    learner.normalizer = pattern.normalizer
    learner.pre_tokenizer = pattern.pre_tokenizer
    learner.decoder = decoders.ByteLevel()
    room = VOCABULARY - len(SPECIAL_TOKENS) - len(PLAIN_TOKENS)
    learner.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=room,
            min_frequency=2,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    learnt = json.loads(learner.to_str())["model"]
    return tokenizer_of(learnt["vocab"], [tuple(pair) for pair in learnt["merges"]], chat_template)


def tokenizer_of(vocabulary: dict[str, int], merges: list[tuple[str, str]], chat_template: str) -> Qwen3_5Tokenizer:
    """Return Qwen3.5's tokenizer over a vocabulary, with its special tokens behind it.

    Args:
        vocabulary: Tokens in byte-level notation, and their ids.
        merges: Pairs of tokens that are merged, the first first.
        chat_template: How messages are rendered.
    """
    from tokenizers import AddedToken
    from transformers import Qwen3_5Tokenizer

    tokenizer = Qwen3_5Tokenizer(
        vocab=vocabulary,
        merges=merges,
        unk_token=None,
        eos_token=AddedToken("<|im_end|>", special=True, normalized=False),
        pad_token=AddedToken("<|endoftext|>", special=True, normalized=False),
    )
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN_TOKENS])
    tokenizer.chat_template = chat_template
    return tokenizer
