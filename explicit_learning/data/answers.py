"""The answer contract: what a response may look like, in one regular expression.

The parser, the data checks and the constrained decoder use the same constant. If these three disagreed on a single
character, a frozen gold answer could be unreachable, or a sampled one break a line-based file. So the
expression uses only what Python's ``re``, xgrammar, llguidance and outlines-core read alike, which was tested for every
Unicode code point:

* only positive ranges: xgrammar clamps a negated class at 127, and would let U+0085 and U+2028 pass;
* U+D000 starts a range of its own: xgrammar loses U+D000 to U+D7FF (Hangul) from a range that crosses into it and
  ends there;
* no half of a surrogate pair: Rust's expressions cannot name one, and UTF-8 cannot hold one.

Left out are ``<`` and ``>``, all control characters (C0, DEL, C1), and U+2028 and U+2029, and with them everything that
`str.splitlines` splits at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from explicit_learning.data.equality import AnswerType, Choice, Equality, answers_equal, normalise

__all__ = [
    "ABSTENTION",
    "ANSWERED_REGEX",
    "ANSWER_SCHEMA_REGEX",
    "MAX_BODY_CHARACTERS",
    "AnswerType",
    "Choice",
    "Equality",
    "ParseReason",
    "ParsedAnswer",
    "answers_equal",
    "is_representable",
    "normalise",
    "parse_answer",
    "render_answer",
]

ABSTENTION = ""
MAX_BODY_CHARACTERS = 64
_CHARACTER = r"[ -;=?-~\u00a0-\u2027\u202a-\ucfff\ud000-\ud7ff\ue000-\uffff\U00010000-\U0010ffff]"
ANSWER_SCHEMA_REGEX = rf"<answer>{_CHARACTER}{{0,64}}</answer>"
ANSWERED_REGEX = rf"<answer>{_CHARACTER}{{1,64}}</answer>"  # the same without the abstention

_OPEN, _CLOSE = "<answer>", "</answer>"
_RESPONSE = re.compile(ANSWER_SCHEMA_REGEX)


class ParseReason(StrEnum):
    """Why a response has a body or not; traces record the value."""

    OK = "ok"
    NO_BLOCK = "no_block"
    UNCLOSED_BLOCK = "unclosed_block"
    SEVERAL_BLOCKS = "several_blocks"
    TEXT_OUTSIDE = "text_outside"
    BODY_TOO_LONG = "body_too_long"
    ILLEGAL_CHARACTER = "illegal_character"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """The answer that a response gives.

    Attributes:
        body: The answer body (``""`` is an abstention), or ``None`` where the response breaks the contract.
        reason: ``OK`` exactly where there is a body.
    """

    body: str | None
    reason: ParseReason


def is_representable(body: str) -> bool:
    """Return whether a response can hold a body."""
    return _RESPONSE.fullmatch(f"{_OPEN}{body}{_CLOSE}") is not None


def render_answer(body: str) -> str:
    """Return the one response with this body.

    Raises:
        ValueError: If no response can hold it; such data was refused before.
    """
    if not is_representable(body):
        raise ValueError(f"an answer cannot hold {body!r}")
    return f"{_OPEN}{body}{_CLOSE}"


def parse_answer(text: str) -> ParsedAnswer:
    """Read a sampled response; trailing white space is tolerated, nothing else is.

    Never raises: what a model samples is not an error of the program. Where several rules are broken, the reason is
    the first one in `ParseReason`'s order.
    """
    response = text.rstrip()
    if _RESPONSE.fullmatch(response):
        return ParsedAnswer(body=response[len(_OPEN) : -len(_CLOSE)], reason=ParseReason.OK)
    return ParsedAnswer(body=None, reason=_reason(response))


def _reason(response: str) -> ParseReason:
    start = response.find(_OPEN)
    if start < 0:
        return ParseReason.NO_BLOCK
    end = response.find(_CLOSE, start)
    if end < 0:
        return ParseReason.UNCLOSED_BLOCK
    if response.find(_OPEN, start + 1) >= 0:
        return ParseReason.SEVERAL_BLOCKS
    if start > 0 or end + len(_CLOSE) < len(response):
        return ParseReason.TEXT_OUTSIDE
    if end - start - len(_OPEN) > MAX_BODY_CHARACTERS:
        return ParseReason.BODY_TOO_LONG
    return ParseReason.ILLEGAL_CHARACTER
