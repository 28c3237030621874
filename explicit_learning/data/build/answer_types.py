"""Which answer type a row's gold fits, what about it a person should know, and choices in another order.

The contract compares answers in one of four ways (`explicit_learning.data.equality`). ``auto`` looks at a row's gold
and choices and says which one fits. It guesses nothing away: "3 cm" is text and stays text, because the contract gives
units no value; it is counted, and shown, so that a person can write "3" and "cm" into the question.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum

from explicit_learning.data.answers import ABSTENTION, AnswerType, Choice, answers_equal, normalise
from explicit_learning.data.build.source import RowFault, SourceRow
from explicit_learning.data.equality import choice_forms
from explicit_learning.data.row_rules import answer_faults
from explicit_learning.errors import Context, found_text

__all__ = [
    "AnswerCounts",
    "AnswerNote",
    "Judged",
    "Shuffled",
    "body_faults",
    "fitting_type",
    "judge_row",
    "notes_of",
    "shuffled",
    "with_shuffled_choices",
]

AUTO = "auto"
EXAMPLES = 3  # of each note that are kept for people
_CONTEXT = Context(gate="source", fix="")  # of faults that become a row's: these have no advice
_SHUFFLE_DOMAIN = "explicit-learning/shuffled-choices/1"
# Single letters are left out, which the contract also reads as yes and no: "N" is as often the letter itself.
_BOOLEAN_WORDS = frozenset({"yes", "no", "true", "false"})


class AnswerNote(StrEnum):
    """What a person should know of a gold answer; the value says it in words."""

    UNIT = "a number with a unit: text to the contract, which compares it letter by letter"
    THOUSANDS = "thousands separators: a number to the contract, 1,000 and 1000 are equal"
    DECIMAL_COMMA = "a decimal comma, or thousands separators in odd groups: text to the contract"
    THOUSANDS_POINT = "a point before three digits: a decimal point to the contract, 1.000 is 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a row's answers are.

    Attributes:
        answer_type: The type that they are compared by.
        notes: What a person should know of the full answer.
    """

    answer_type: AnswerType
    notes: tuple[AnswerNote, ...]


def fitting_type(answer: str, choices: tuple[Choice, ...] = ()) -> AnswerType:
    """Return the answer type that fits a gold answer.

    With choices it is ``choice``. Else ``boolean`` for yes, no, true and false, whatever their case; ``number`` where
    the contract reads a number; ``text`` for all the rest.
    """
    if choices:
        return AnswerType.CHOICE
    if normalise(answer, AnswerType.TEXT) in _BOOLEAN_WORDS:
        return AnswerType.BOOLEAN
    return AnswerType.TEXT if normalise(answer, AnswerType.NUMBER) is None else AnswerType.NUMBER


def body_faults(answer: str, *, place: str) -> tuple[RowFault, ...]:
    """Return why an answer cannot be gold whatever its type: blank, too long, with characters that no response holds.

    Args:
        answer: The answer's body.
        place: Its field, for the faults.
    """
    if answer == ABSTENTION:
        expected = "an answer that the picture determines: leave out rows without one"
        return (RowFault(field=place, found="an empty answer, which is an abstention", expected=expected),)
    return _faults(answer, AnswerType.TEXT, (), place)


def judge_row(row: SourceRow, *, answer_type: str | None = None) -> Judged | tuple[RowFault, ...]:
    """Return the type of a row's answers, or why the contract cannot compare them.

    Args:
        row: The row.
        answer_type: A type of `AnswerType` or ``auto`` for every row, whatever the row says.
    """
    named = row.answer_type if answer_type is None else answer_type
    kind = fitting_type(row.answer, row.choices) if named == AUTO else AnswerType(named)
    if kind is AnswerType.CHOICE and not row.choices:
        return (RowFault(field="answer_type", found="choice without choices", expected="at least two choices"),)
    wrong = list(_faults(row.answer, kind, row.choices, "answer"))
    other = row.substitute_answer
    if other is not None:
        wrong += _faults(other, kind, row.choices, "substitute_answer")
        if not wrong and answers_equal(row.answer, other, kind, row.choices).equal:
            found = f"{found_text(other)}, which equals the answer {found_text(row.answer)}"
            expected = "another answer than that of the row's own images"
            wrong.append(RowFault(field="substitute_answer", found=found, expected=expected))
    return tuple(wrong) or Judged(answer_type=kind, notes=notes_of(row.answer, kind))


def _faults(body: str, kind: AnswerType, choices: tuple[Choice, ...], place: str) -> tuple[RowFault, ...]:
    return tuple(
        RowFault(field=place, found=fault.found, expected=fault.expected)
        for fault in answer_faults(place, body, kind, choices, _CONTEXT)
    )


# --- notes --------------------------------------------------------------------------------------------------------

_SEPARATED = re.compile(r"\d{1,3}(?:[,' \u00a0\u2009\u202f]\d{3})+")
_COMMA = re.compile(r"[+-]?\d+(?:[.,]\d+)*,\d+")
_POINT_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")
_CURRENCY = "$\u20ac\u00a3\u00a5\u20b9"
_WITH_UNIT = re.compile(
    r"(?!\d+(?:st|nd|rd|th)$)"
    rf"(?:[{_CURRENCY}] ?[+-]?\d[\d.,' ]*|[+-]?\d[\d.,' /]*(?:[{_CURRENCY}]|[^\W\d_][^\W\d_]{{0,11}}[\u00b2\u00b3]?"
    rf"(?:/[^\W\d_]{{1,8}}[\u00b2\u00b3]?)?|\u00b0 ?[CF]?))"
)


def notes_of(answer: str, answer_type: AnswerType) -> tuple[AnswerNote, ...]:
    """Return what a person should know of a gold answer that is, or almost is, a number."""
    text, notes = answer.strip(), []
    if answer_type not in {AnswerType.NUMBER, AnswerType.TEXT}:
        return ()
    if answer_type is AnswerType.TEXT and _WITH_UNIT.fullmatch(text):
        notes.append(AnswerNote.UNIT)
    if _SEPARATED.search(text) and (answer_type is AnswerType.NUMBER or notes):
        notes.append(AnswerNote.THOUSANDS)
    if answer_type is AnswerType.TEXT and _COMMA.fullmatch(text):
        notes.append(AnswerNote.DECIMAL_COMMA)
    if answer_type is AnswerType.NUMBER and _POINT_GROUPS.fullmatch(text):
        notes.append(AnswerNote.THOUSANDS_POINT)
    return tuple(notes)


@dataclass(slots=True)
class AnswerCounts:
    """How many answers have each type, and each note with the first examples.

    Attributes:
        types: Rows by answer type.
        notes: Rows by note.
        examples: The first golds of each note.
    """

    types: Counter[AnswerType] = field(default_factory=Counter)
    notes: Counter[AnswerNote] = field(default_factory=Counter)
    examples: dict[AnswerNote, list[str]] = field(default_factory=dict)

    def add(self, answer: str, judged: Judged) -> None:
        """Count a row's answer."""
        self.types[judged.answer_type] += 1
        for note in judged.notes:
            self.notes[note] += 1
            shown = self.examples.setdefault(note, [])
            if len(shown) < EXAMPLES and answer not in shown:
                shown.append(answer)

    def lines(self) -> list[str]:
        """Return the counts in words, one line a type and one a note."""
        types = [f"{kind.value}: {self.types[kind]:,}" for kind in AnswerType if self.types[kind]]
        notes = [
            f"{self.notes[note]:,} with {note.value}: {', '.join(map(found_text, self.examples[note]))}"
            for note in AnswerNote
            if self.notes[note]
        ]
        return types + notes


# --- shuffled choices ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """Choices in another order.

    Attributes:
        choices: The keys in their old order, each with the text that moved there.
        renamed: Old key → new key of the same text.
        kept: Why the order was left as it was; ``None`` where it was drawn.
    """

    choices: tuple[Choice, ...]
    renamed: dict[str, str]
    kept: str | None = None


# What a text says of the order or of other keys: true in one order only.
_ABOUT_ORDER = re.compile(
    r"\b(?:above|below|former|latter|preceding|following)\b|\b[A-Z](?:, [A-Z])*,? (?:and|or|&) [A-Z]\b"
)


def shuffled(choices: tuple[Choice, ...], *, key: bytes) -> Shuffled:
    """Move the texts of choices by a permutation that a key determines, so that a choice's key says nothing.

    The keys stay where they are (A, B, C, ...). Where a text speaks of the order ("all of the above", "both A and B")
    or is itself a key, the order is kept.

    Args:
        choices: The choices.
        key: What the permutation is drawn by: the seed and the row's name, for example.
    """
    same = {choice.key: choice.key for choice in choices}
    if any(_ABOUT_ORDER.search(choice.text) for choice in choices):
        return Shuffled(choices=choices, renamed=same, kept="a choice speaks of the order or of another choice")
    forms = [choice_forms(choice) for choice in choices]
    if {text for _, text in forms} & {name for name, _ in forms}:
        return Shuffled(choices=choices, renamed=same, kept="the text of a choice is a key")

    def draw(index: int) -> bytes:
        text = json.dumps([_SHUFFLE_DOMAIN, key.hex(), index], separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()

    order = sorted(range(len(choices)), key=draw)
    moved = tuple(Choice(key=choices[place].key, text=choices[old].text) for place, old in enumerate(order))
    renamed = {choices[old].key: choices[place].key for place, old in enumerate(order)}
    return Shuffled(choices=moved, renamed=renamed)


def with_shuffled_choices(row: SourceRow, *, key: bytes) -> tuple[SourceRow, str | None]:
    """Return a row with its choices shuffled and its answers rewritten, and why the order was kept, if it was.

    An answer that names a choice by its key gets the new key; one that names it by its text stays.

    Args:
        row: A row that `judge_row` found right.
        key: As for `shuffled`.
    """
    if not row.choices:
        return row, None
    drawn = shuffled(row.choices, key=key)

    new_keys = {choice_forms(choice)[0]: drawn.renamed[choice.key] for choice in row.choices}

    def rewritten(answer: str) -> str:
        return new_keys.get(choice_forms(Choice(key=answer, text=answer))[0], answer)

    other = None if row.substitute_answer is None else rewritten(row.substitute_answer)
    changed = replace(row, choices=drawn.choices, answer=rewritten(row.answer), substitute_answer=other)
    return changed, drawn.kept
