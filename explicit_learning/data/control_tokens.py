"""Text that a tokenizer turns into control tokens: it would end the user's turn, or forge the assistant's.

A tokenizer finds its added tokens (``<|im_end|>``, ``<think>``, ...) anywhere in a rendered prompt, whoever wrote them.
Only the chat template may write them, so no text that is put into it may hold one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from explicit_learning.data.prompt import completion_messages, prompt_messages, user_text
from explicit_learning.errors import Context, Refusal, found_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.data.preflight import Asked
    from explicit_learning.data.preflight_tokens import ModelText
    from explicit_learning.errors import Fault

__all__ = ["ControlTokens", "known_control_token", "turn_end"]

CONTEXT = Context(gate="preflight", fix="take the token out of the text, or write it in another way")
ANSWER = "ANSWER"
# What Qwen's templates and tokenizers write: for checks before a model is named. Those of a model are checked exactly.
_KNOWN = re.compile(r"<\|[^<>|\s]{1,64}\|>|</?(?:think|tool_call|tool_response)>")
AROUND = 20  # characters that a fault shows on each side of a token


def known_control_token(text: str) -> str | None:
    """Return the first text that tokenizers of Qwen's family make into a control token, or ``None``."""
    match = _KNOWN.search(text)
    return match and match[0]


def turn_end(text: ModelText) -> tuple[str, int] | None:
    """Return the control token that a model's template writes behind an answer, and its id; ``None`` if it has none."""
    messages = [*prompt_messages("s", "q", image_count=1), *completion_messages(ANSWER)]
    try:
        rendered = text.render(messages, answered=True)
    except Refusal:  # a template for prompts alone
        return None
    name = ControlTokens(text).first(rendered.rpartition(ANSWER)[2])
    number = None if name is None else text.tokenizer.token_to_id(name)
    return None if name is None or number is None else (name, number)


class ControlTokens:
    """A model's control tokens, and where a text holds one."""

    def __init__(self, text: ModelText) -> None:
        """Take the control tokens of a model's tokenizer; white space is none."""
        names = {name for name in text.control_tokens if name.strip()}
        longest_first = sorted(names, key=lambda name: (-len(name), name))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def fault(self, text: str, at: Context, pointer: str) -> Fault | None:
        """Return a fault if a text holds a control token, or ``None``."""
        match = self._pattern.search(text)
        if match is None:
            return None
        shown = text[max(0, match.start() - AROUND) : match.end() + AROUND]
        return at.fault(
            pointer=pointer,
            found=f"the model's control token {match[0]} in {found_text(shown)}",
            expected="text without control tokens: only the chat template writes them",
        )

    def first(self, text: str) -> str | None:
        """Return the first control token in a text, or ``None``."""
        match = self._pattern.search(text)
        return match and match[0]

    def row_faults(self, rows: Sequence[Asked]) -> Iterator[tuple[int, Fault]]:
        """Yield (index of the row, fault) for each text of a row that holds a control token."""
        clean: set[str] = set()
        for index, row in enumerate(rows):
            whole = user_text(row.question, row.choices)
            if whole not in clean:
                if self._pattern.search(whole) is None:
                    clean.add(whole)
                else:
                    yield from ((index, fault) for fault in self._question_faults(row))
            for pointer, body in row.answers:
                if fault := self.fault(body, CONTEXT.at(row.where, row.name), pointer):
                    yield index, fault

    def _question_faults(self, row: Asked) -> Iterator[Fault]:
        at = CONTEXT.at(row.where, row.name)
        texts = [("/question", row.question)]
        for position, choice in enumerate(row.choices):
            texts += [(f"/choices/{position}/key", choice.key), (f"/choices/{position}/text", choice.text)]
        for pointer, text in texts:
            if fault := self.fault(text, at, pointer):
                yield fault
