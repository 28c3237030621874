"""From answers to rates, per relation and per state of the evidence.

One number would hide what the experiment is about: a model that never abstains and one that always does can have the
same overall accuracy. So FULL and CONTROL are counted as accuracy, SUBSTITUTE as flips to the substitute's answer, and
MISSING as abstention, separately for each removal operator, because training saw only one of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.answers import ABSTENTION
from explicit_learning.data.equality import answers_equal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from explicit_learning.data.rows import SlotRow
    from explicit_learning.rewards import Score

__all__ = ["RATES", "Answered", "summarise"]

# Name of the share of right answers in each relation.
RATES = {
    "FULL": "accuracy",
    "CONTROL": "accuracy",
    "MISSING": "abstention",
    "SUBSTITUTE": "flips",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One question and the model's answer to it.

    Attributes:
        row: The question, with the view that was shown.
        text: The decoded completion.
        score: How it was scored against the view's target.
    """

    row: SlotRow
    text: str
    score: Score

    @property
    def right(self) -> bool:
        """Whether the answer is the view's target."""
        return self.score.components["answer"] > 0

    @property
    def abstained(self) -> bool:
        """Whether the answer is empty."""
        return self.score.parsed_answer == ABSTENTION

    @property
    def gave_full_answer(self) -> bool:
        """Whether the answer is the original image's, right or wrong for this view."""
        body, row = self.score.parsed_answer, self.row
        return body is not None and answers_equal(body, row.full_answer, row.answer_type, row.choices).equal


def summarise(answers: Sequence[Answered]) -> dict[str, Any]:
    """Return counts and rates as JSON.

    The block of each relation holds ``rows``, ``right``, the rate under its name in `RATES`, how many answers
    abstained, how many gave the original image's answer, and the same for each state.
    """
    relations: dict[str, list[Answered]] = defaultdict(list)
    for answer in answers:
        relations[answer.row.relation.value].append(answer)
    return {
        "rows": len(answers),
        "malformed": sum(not answer.score.valid for answer in answers),
        "relations": {
            relation: {
                **_counts(relations[relation], rate),
                "states": {
                    state: _counts([a for a in relations[relation] if a.row.selected_view.state == state], rate)
                    for state in _states(relations[relation])
                },
            }
            for relation, rate in RATES.items()
            if relations[relation]
        },
    }


def _states(answers: Iterable[Answered]) -> list[str]:
    return sorted({answer.row.selected_view.state for answer in answers})


def _counts(answers: Sequence[Answered], rate: str) -> dict[str, Any]:
    right = sum(answer.right for answer in answers)
    return {
        "rows": len(answers),
        "right": right,
        rate: right / len(answers),
        "abstained": sum(answer.abstained for answer in answers),
        "said_full_answer": sum(answer.gave_full_answer for answer in answers),
    }
