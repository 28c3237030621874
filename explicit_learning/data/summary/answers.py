"""How the right answers are distributed: where one is nearly always right, a model need not look at the image.

Answers are counted once a base item, by the FULL row's answer in its canonical form, so that "Yes" and "yes." are one.
A choice is counted by its key: where the keys are uneven, the key says something about the answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.answers import AnswerType, normalise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.data.answers import Choice

__all__ = ["AnswerCount", "AnswerCounter", "Answers"]

SHOWN = 10
# One answer dominates where always giving it would be right this often. Of two answers, one has at least a half.
DOMINANT_OF_TWO = 0.8
DOMINANT = 0.5
# Of fewer items, a share says little.
FEWEST_ITEMS = 20
TWO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCount:
    """An answer, as the first item with it writes it, and how many items have it."""

    answer: str
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The right answers of one type in one file.

    Attributes:
        answer_type: The type.
        items: Base items: rows of the relation FULL.
        distinct: How many answers differ.
        most_frequent: The most frequent answers, at most ten.
        share: Share of the items that have the most frequent one, in [0, 1].
        dominates: Whether that is so much that a model gains by not looking.
    """

    answer_type: str
    items: int
    distinct: int
    most_frequent: tuple[AnswerCount, ...]
    share: float
    dominates: bool


class AnswerCounter:
    """Counts the answers of a file, type by type."""

    def __init__(self) -> None:
        self._counts: dict[AnswerType, Counter[str]] = {}
        self._written: dict[tuple[AnswerType, str], str] = {}

    def add(self, answer: str, answer_type: AnswerType, choices: Sequence[Choice]) -> None:
        """Count one item's right answer."""
        form = normalise(answer, answer_type, choices)
        key = answer if form is None else form
        self._counts.setdefault(answer_type, Counter())[key] += 1
        self._written.setdefault((answer_type, key), answer)

    def answers(self) -> tuple[Answers, ...]:
        """Return what was counted, type by type in the types' own order."""
        return tuple(self._of_type(kind, self._counts[kind]) for kind in AnswerType if kind in self._counts)

    def _of_type(self, kind: AnswerType, counts: Counter[str]) -> Answers:
        items = counts.total()
        # Equal counts in the order of their text: the order of the file means nothing.
        first = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:SHOWN]
        share = first[0][1] / items
        enough = DOMINANT if len(counts) > TWO else DOMINANT_OF_TWO
        return Answers(
            answer_type=kind.value,
            items=items,
            distinct=len(counts),
            most_frequent=tuple(AnswerCount(answer=self._written[kind, key], items=count) for key, count in first),
            share=share,
            dominates=items >= FEWEST_ITEMS and share >= enough,
        )
