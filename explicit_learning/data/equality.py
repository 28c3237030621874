"""When two answers are the same: one branch an answer type, each with a canonical form.

A reward is only as good as this comparison, and anyone must be able to repeat it from a trace; so a comparison records
its branch and the canonical forms of both sides. Every branch maps an answer to a canonical form, or to none where it
cannot be read that way. Two answers are equal when they have the same form; an answer without a form equals only its
own exact text. Equality is therefore reflexive, symmetric and transitive by construction. An abstention (the empty
answer) has the empty form, which no other answer gets.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["AnswerType", "Choice", "Equality", "answers_equal", "choice_forms", "normalise"]


class AnswerType(StrEnum):
    """How answers are compared: the normaliser branch."""

    CHOICE = "choice"
    NUMBER = "number"
    BOOLEAN = "boolean"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of a question's choices: the key a model may answer with, and the text shown after it."""

    key: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """The outcome of a comparison, as traces record it.

    Attributes:
        equal: Whether the answers are the same.
        branch: The normaliser branch; it depends on the answer type alone.
        normalised_a: The first answer's canonical form, ``""`` for an abstention, ``None`` where it has none.
        normalised_b: The second answer's.
    """

    equal: bool
    branch: AnswerType
    normalised_a: str | None
    normalised_b: str | None


def answers_equal(a: str, b: str, answer_type: AnswerType | str, choices: Sequence[Choice] = ()) -> Equality:
    """Compare two answer bodies. No text raises.

    Args:
        a: An answer body.
        b: Another one; the order means nothing.
        answer_type: The branch.
        choices: The question's choices; only the branch ``choice`` looks at them.

    Raises:
        ValueError: If the answer type is not one of the four.
    """
    branch = AnswerType(answer_type)
    form_a, form_b = normalise(a, branch, choices), normalise(b, branch, choices)
    equal = a == b if form_a is None or form_b is None else form_a == form_b
    return Equality(equal=equal, branch=branch, normalised_a=form_a, normalised_b=form_b)


def normalise(body: str, answer_type: AnswerType | str, choices: Sequence[Choice] = ()) -> str | None:
    """Return an answer's canonical form in a branch, ``""`` for an abstention, ``None`` where it has none.

    Raises:
        ValueError: If the answer type is not one of the four.
    """
    branch = AnswerType(answer_type)
    if not body:
        return ""
    if branch is AnswerType.CHOICE:
        return _choice(body, choices)
    return _BRANCHES[branch](body)


# Answers repeat, within a group and from one visit to the next: the forms of the latest ones are kept.
_remember = lru_cache(maxsize=1 << 14)


# --- text ---------------------------------------------------------------------------------------------------------

_ARTICLES = frozenset({"a", "an", "the"})
# Marks that end or enclose a phrase. Signs that carry meaning stay: "-5", "50%", "C#", "#1", "&".
_ENCLOSING = frozenset({"Ps", "Pe", "Pi", "Pf"})
_MARKS = frozenset(".,;:!?'\"`\u00a1\u00bf\u3001\u3002")
# All dashes and the minus sign are typed as "-", the typographic apostrophe as "'".
_TYPED = {ord(dash): "-" for dash in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"} | {0x2019: "'"}


@_remember
def _text(body: str) -> str | None:
    """Unicode NFKC, case-folded, white space as single blanks, outer punctuation and articles dropped.

    An article is dropped anywhere but at the end, where the word is a name ("vitamin A"). What would vanish entirely
    ("...", "the") stays as it is.
    """
    text = " ".join(_fold(body).split())
    while True:
        words = _strip_marks(text).split()
        words = [word for word in words[:-1] if word not in _ARTICLES] + words[-1:]
        shorter = " ".join(words) or text
        if shorter == text:
            return text or None
        text = shorter


def _fold(text: str) -> str:
    """NFKC and case folding, repeated until neither changes anything: one round of both is not always stable."""
    while (folded := unicodedata.normalize("NFKC", text).translate(_TYPED).casefold()) != text:
        text = folded
    return text


def _is_mark(character: str) -> bool:
    return character in _MARKS or unicodedata.category(character) in _ENCLOSING


def _strip_marks(text: str) -> str:
    start, end = 0, len(text)
    while end > start and (text[end - 1].isspace() or _is_mark(text[end - 1])):
        end -= 1
    # The point of ".5" is not punctuation.
    while start < end and (text[start].isspace() or (_is_mark(text[start]) and not _opens_number(text, start))):
        start += 1
    return text[start:end]


def _opens_number(text: str, index: int) -> bool:
    return text[index] == "." and text[index + 1 : index + 2].isdecimal()


# --- choice -------------------------------------------------------------------------------------------------------


def choice_forms(choice: Choice) -> tuple[str, str]:
    """Return the forms under which a choice can be named: that of its key and that of its text.

    Case and punctuation do not count. Punctuation that belongs to a number does ("-5", "1.5", "3:45").
    """
    return _plain(choice.key), _plain(choice.text)


def _choice(body: str, choices: Sequence[Choice]) -> str | None:
    """Return the key of the one choice that is named, by key or by text."""
    form = _plain(body)
    keys = {choice.key for choice in choices if choice.key and form and form in choice_forms(choice)}
    return keys.pop() if len(keys) == 1 else None


@_remember
def _plain(text: str) -> str:
    folded = _fold(text)
    plain = "".join(_without_punctuation(folded, index) for index in range(len(folded)))
    return " ".join(plain.split()) or " ".join(folded.split())


def _without_punctuation(text: str, index: int) -> str:
    character = text[index]
    if character in "-.,:" and text[index + 1 : index + 2].isdecimal():
        return character
    if character == "-":
        return " "
    return "" if _is_mark(character) else character


# --- boolean ------------------------------------------------------------------------------------------------------

_BOOLEANS = {"true": "true", "yes": "true", "y": "true", "false": "false", "no": "false", "n": "false"}


def _boolean(body: str) -> str | None:
    return _BOOLEANS.get(_text(body) or "")


# --- number -------------------------------------------------------------------------------------------------------

# Longer numerals are not answers; the bound keeps exact arithmetic cheap on any text.
_MAX_NUMERAL = 128
# Only signs that are variants of the ASCII ones. NFKC would turn "10\u00b2" into 102 and "1\u00bd" into 11/2.
_NUMERIC_SIGNS = _TYPED | str.maketrans(
    "\ufe63\uff0d\uff0b\uff0c\uff0e\uff05\uff0f\u2044\u2215\u00a0\u2009\u202f", "--+,.%///   "
)
# A first group of 0 is a decimal comma ("0,123"), which is not guessed.
_GROUPED = r"(?!0)\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+|(?:'\d{3})+)"
_DECIMAL = re.compile(rf"([+-]?) ?((?:{_GROUPED}|\d+)(?:\.\d+)?|\.\d+)(?:e([+-]?\d{{1,3}}))?( ?%)?\.?", re.IGNORECASE)
_FRACTION = re.compile(r"([+-]?) ?(\d+) ?/ ?(\d+)")


@_remember
def _number(body: str) -> str | None:
    """Return the value as an exact, reduced fraction: "7", "-1/2".

    Read are decimals with thousands separators (comma, blank or apostrophe, in whole groups of three), an exponent, a
    percent sign (50% is 1/2), and simple fractions. Units are not guessed: "5 cm" and "$5" have no value.
    """
    text = body.strip()
    if len(text) > _MAX_NUMERAL:
        return None
    if len(text) == 1 and unicodedata.decomposition(text).startswith("<fraction>"):
        text = unicodedata.normalize("NFKC", text)
    text = text.translate(_NUMERIC_SIGNS)
    if match := _DECIMAL.fullmatch(text):
        sign, digits, exponent, percent = match.groups()
        value = Fraction(re.sub("[, ']", "", digits)) * Fraction(10) ** int(exponent or 0)
        value /= 100 if percent else 1
    elif (match := _FRACTION.fullmatch(text)) and int(match[3]):
        sign, value = match[1], Fraction(int(match[2]), int(match[3]))
    else:
        return None
    return str(-value if sign == "-" else value)


_BRANCHES: dict[AnswerType, Callable[[str], str | None]] = {
    AnswerType.NUMBER: _number,
    AnswerType.BOOLEAN: _boolean,
    AnswerType.TEXT: _text,
}
