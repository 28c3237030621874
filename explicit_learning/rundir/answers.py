"""From completions to scored answers, and from answers to rates, per relation and per state of the evidence.

One number would hide what the experiment is about: a model that never abstains and one that always does can have the
same overall accuracy. So FULL and CONTROL are counted as accuracy, SUBSTITUTE as flips to the substitute's answer, and
MISSING as abstention, separately for each removal operator, because training saw only one of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.answers import ABSTENTION, parse_answer
from explicit_learning.data.equality import answers_equal
from explicit_learning.files.typed_json import document
from explicit_learning.plan.typed_plan import Reward
from explicit_learning.rewards import REWARD_VERSION, TRUNCATED, score

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from explicit_learning.data.rows import SlotRow
    from explicit_learning.rewards import Score

__all__ = ["RATES", "Answer", "Answered", "answered", "parsed_fields", "summarise"]

WEIGHTS = Reward(version=REWARD_VERSION, answer=1.0, format=0.0, malformed=-1.0)
# Name of the share of right answers in each relation.
RATES = {
    "FULL": "accuracy",
    "CONTROL": "accuracy",
    "MISSING": "abstention",
    "SUBSTITUTE": "flips",
}


@document("evaluation-answer")
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A line of an evaluation's answers; its schema describes each field."""

    slot_id: str
    view_id: str
    relation: str
    state: str
    target: str
    text: str
    valid: bool
    reason: str | None
    parsed_answer: str | None
    right: bool
    abstained: bool
    said_full_answer: bool


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

    def record(self) -> Answer:
        """Return the answer as a row."""
        view = self.row.selected_view
        return Answer(
            slot_id=self.row.slot_id,
            view_id=view.view_id,
            relation=self.row.relation.value,
            state=view.state,
            target=self.row.target,
            text=self.text,
            valid=self.score.valid,
            reason=self.score.reason,
            parsed_answer=self.score.parsed_answer,
            right=self.right,
            abstained=self.abstained,
            said_full_answer=self.gave_full_answer,
        )

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


def answered(row: SlotRow, text: str, *, terminated: bool) -> Answered:
    """Score a completion against the target of the view that was shown.

    Args:
        row: The question.
        text: The completion, decoded without special tokens.
        terminated: Whether a terminal token was sampled.
    """
    result = score(
        text,
        terminated=terminated,
        gold=row.target,
        answer_type=row.answer_type,
        choices=row.choices,
        weights=WEIGHTS,
    )
    return Answered(row=row, text=text, score=result)


def parsed_fields(answer: Answer) -> dict[str, Any]:
    """Return the fields of an answer that follow from its text, by name, computed again.

    A text does not show whether it was cut off, so a reason that says so is taken as it is. A malformed answer is never
    right; whether another one is, only its row tells.
    """
    parsed = None if answer.reason == TRUNCATED else parse_answer(answer.text)
    if parsed is not None and parsed.body is not None:
        body = parsed.body
        return {"valid": True, "reason": None, "parsed_answer": body, "abstained": body == ABSTENTION}
    return {
        "valid": False,
        "reason": TRUNCATED if parsed is None else parsed.reason.value,
        "parsed_answer": None,
        "right": False,
        "abstained": False,
        "said_full_answer": False,
    }


def summarise(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return counts and rates as JSON.

    The block of each relation holds ``rows``, ``right``, the rate under its name in `RATES`, how many answers
    abstained, how many gave the original image's answer, and the same for each state.
    """
    relations: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        relations[answer.relation].append(answer)
    return {
        "rows": len(answers),
        "malformed": sum(not answer.valid for answer in answers),
        "relations": {
            relation: {
                **_counts(relations[relation], rate),
                "states": {
                    state: _counts([a for a in relations[relation] if a.state == state], rate)
                    for state in _states(relations[relation])
                },
            }
            for relation, rate in RATES.items()
            if relations[relation]
        },
    }


def _states(answers: Iterable[Answer]) -> list[str]:
    return sorted({answer.state for answer in answers})


def _counts(answers: Sequence[Answer], rate: str) -> dict[str, Any]:
    right = sum(answer.right for answer in answers)
    return {
        "rows": len(answers),
        "right": right,
        rate: right / len(answers),
        "abstained": sum(answer.abstained for answer in answers),
        "said_full_answer": sum(answer.said_full_answer for answer in answers),
    }
