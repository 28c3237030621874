"""Prompts on ranks: none is longer than the plan allows.

The gates counted every prompt already. A prompt that the model's own processor makes longer is refused here.
"""

from __future__ import annotations

from explicit_learning.errors import Context

__all__ = ["refuse_long_prompt"]

CONTEXT = Context(gate="data", fix="raise generation.max_prompt_tokens, or use smaller images")


def refuse_long_prompt(row: str, tokens: int, *, limit: int) -> None:
    """Raise if a row's prompt has more tokens than the limit.

    Args:
        row: The slot's or record's id.
        tokens: Length of its prompt as the model gets it.
        limit: The plan's ``generation.max_prompt_tokens``.

    Raises:
        Refusal: Naming the row.
    """
    if tokens > limit:
        raise CONTEXT.refusal(
            file=row,
            found=f"a prompt of {tokens} tokens",
            expected=f"at most {limit} (generation.max_prompt_tokens): prompts are never truncated",
        )
