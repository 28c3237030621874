"""The prompt: one system text, one user turn of images and a question, the same for every arm.

How a question is put is part of the experiment's identity. It is built here and nowhere else, so that training,
evaluation and the check of the token limits ask alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context
from explicit_learning.files.strict_json import read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.data.answers import Choice

__all__ = ["TEMPLATE_OPTIONS", "completion_messages", "load_system_prompt", "prompt_messages", "user_text"]

Message = dict[str, Any]

# Passed to every rendering of a chat template.
TEMPLATE_OPTIONS: dict[str, Any] = {"enable_thinking": False}

MAX_PROMPT_BYTES = 1 << 20


def load_system_prompt(path: Path) -> str:
    """Read the system text; white space around it is dropped.

    Raises:
        Refusal: If the file is missing, unreadable, larger than 1 MiB, not UTF-8, or has no text in it.
    """
    at = Context(gate="prompt", file=str(path))
    try:
        text = read_bytes(path, gate=at.gate, max_bytes=MAX_PROMPT_BYTES).decode()
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is not UTF-8"
        raise at.refusal(found=found, expected="UTF-8 text", fix="save the file as UTF-8") from None
    if text.startswith("\ufeff"):
        fix = "save the file as UTF-8 without BOM"
        raise at.refusal(found="a byte-order mark", expected="UTF-8 text without one", fix=fix)
    if not text.strip():
        fix = "write the instruction that every prompt starts with"
        raise at.refusal(found="no text", expected="a system prompt", fix=fix)
    return text.strip()


def user_text(question: str, choices: Sequence[Choice] = ()) -> str:
    """Return the text part of the user turn: the question, and where there are choices, one line for each."""
    if not choices:
        return question
    lines = (f"{choice.key}. {choice.text}" for choice in choices)
    return "\n".join([question, "", "Choices:", *lines])


def prompt_messages(system: str, question: str, choices: Sequence[Choice] = (), *, image_count: int) -> list[Message]:
    """Return the messages of a prompt, in the form that TRL and the processor take.

    Rows that carry them hold the images under the key ``images``, whatever their number: TRL decides by the first row
    whether to look at ``image`` or at ``images``, and gives rows of the other kind none.

    Args:
        system: The system text.
        question: The question.
        choices: Its choices, if any.
        image_count: How many images the row has; each gets a part of its own, before the text.

    Raises:
        ValueError: If there is no image: every record has one.
    """
    if image_count < 1:
        raise ValueError("a prompt without an image")
    images: list[Message] = [{"type": "image"} for _ in range(image_count)]
    return [
        {"role": "system", "content": [{"type": "text", "text": system}]},
        {"role": "user", "content": [*images, {"type": "text", "text": user_text(question, choices)}]},
    ]


def completion_messages(response: str) -> list[Message]:
    """Return the assistant turn of a certificate."""
    return [{"role": "assistant", "content": [{"type": "text", "text": response}]}]
