"""Answers of an evaluation: what was asked, what the model answered, how it was scored, and how sure the model was.

Each row of an evaluation is asked as it is. Each row that shows the original images is asked once more with blank ones
in their place: what a model gets right then, it gets right without seeing anything (the image-blind baseline).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.data.answers import ABSTENTION, parse_answer
from explicit_learning.data.equality import answers_equal
from explicit_learning.data.keys import keyed_digest
from explicit_learning.data.rows import Relation
from explicit_learning.files.typed_json import document
from explicit_learning.plan.typed_plan import Reward
from explicit_learning.rewards import REWARD_VERSION, TRUNCATED, score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.data.rows import SlotRow
    from explicit_learning.rewards import Score

__all__ = [
    "Answer",
    "Answered",
    "Asked",
    "OwnBest",
    "Preference",
    "again",
    "answered",
    "asked_of",
    "confidence_of",
    "parsed_fields",
]

WEIGHTS = Reward(version=REWARD_VERSION, answer=1.0, format=0.0, malformed=-1.0)
LIMIT_DOMAIN = "explicit-learning/evaluation-limit/1"
MOST_NATS = 700.0  # its exponential is still a double

Shown = Literal["shown", "blank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question of an evaluation.

    Attributes:
        row: Its row, whose selected view is shown.
        image: Whether the view's images are ``shown``, or ``blank`` ones of the same sizes in their place.
    """

    row: SlotRow
    image: Shown = "shown"


def asked_of(rows: Sequence[SlotRow], *, limit: int | None = None) -> tuple[Asked, ...]:
    """Return what is asked of evaluation rows: each row, and then each FULL row again with blank images.

    Args:
        rows: The rows, in the order of their file.
        limit: Number of base items to ask about; ``None`` for all. They are drawn by their names, so that a smaller
            number asks about a part of what a larger one does, wherever they lie in the file.
    """
    if limit is not None:
        groups = sorted({row.group_id for row in rows}, key=lambda name: keyed_digest(LIMIT_DOMAIN, name))
        kept = frozenset(groups[:limit])
        rows = [row for row in rows if row.group_id in kept]
    blank = (Asked(row=row, image="blank") for row in rows if row.relation is Relation.FULL)
    return (*(Asked(row=row) for row in rows), *blank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A model's own best answer beside an abstention, measured without the right answer.

    Both log-probs are sums over tokens, terminal token included, each among the tokens that the answer contract allows
    there.

    Attributes:
        body: The body of the answer that the model prefers among those that are not an abstention.
        log_prob: Its log-prob. Unit: nats.
        abstention_log_prob: The log-prob of an abstention. Unit: nats.
    """

    body: str
    log_prob: float
    abstention_log_prob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBest:
    """A model's preference as an answer's row holds it.

    Attributes:
        body: The answer that the model prefers among those that are not an abstention.
        right: Whether it is the target.
        log_prob: Its log-prob under the answer contract. Unit: nats.
        abstention_log_prob: The log-prob of an abstention. Unit: nats.
        confidence: Probability of the answer, if the model had only it and the abstention to choose from; 0 to 1.
    """

    body: str
    right: bool
    log_prob: float
    abstention_log_prob: float
    confidence: float


def confidence_of(log_prob: float, abstention_log_prob: float) -> float:
    """Return exp(a) / (exp(a) + exp(b)) for two log-probs in nats, without overflow."""
    difference = min(max(log_prob - abstention_log_prob, -MOST_NATS), MOST_NATS)
    return 1.0 / (1.0 + math.exp(-difference))


@document("evaluation-answer")
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A line of an evaluation's answers; its schema describes each field."""

    slot_id: str
    group_id: str
    view_id: str
    relation: str
    state: str
    image: Shown
    target: str
    text: str
    valid: bool
    reason: str | None
    parsed_answer: str | None
    normalised_prediction: str | None
    right: bool
    abstained: bool
    said_full_answer: bool
    own_best: OwnBest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One question and the model's answer to it.

    Attributes:
        row: The question, with the view that was shown.
        image: Whether its images were shown, or blank ones.
        text: The decoded completion.
        score: How it was scored against the view's target.
        preference: The model's own best answer beside an abstention; ``None`` where that was not measured.
    """

    row: SlotRow
    image: Shown = "shown"
    text: str
    score: Score
    preference: Preference | None = None

    def record(self) -> Answer:
        """Return the answer as a row."""
        row, view = self.row, self.row.selected_view
        return Answer(
            slot_id=row.slot_id,
            group_id=row.group_id,
            view_id=view.view_id,
            relation=row.relation.value,
            state=view.state,
            image=self.image,
            target=row.target,
            text=self.text,
            valid=self.score.valid,
            reason=self.score.reason,
            parsed_answer=self.score.parsed_answer,
            normalised_prediction=self.score.normalised_prediction,
            right=self.right,
            abstained=self.abstained,
            said_full_answer=self.gave_full_answer,
            own_best=self._own_best(),
        )

    def _own_best(self) -> OwnBest | None:
        if (found := self.preference) is None:
            return None
        return OwnBest(
            body=found.body,
            right=_equal(found.body, self.row.target, self.row),
            log_prob=found.log_prob,
            abstention_log_prob=found.abstention_log_prob,
            confidence=confidence_of(found.log_prob, found.abstention_log_prob),
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
        body = self.score.parsed_answer
        return body is not None and _equal(body, self.row.full_answer, self.row)


def _equal(one: str, other: str, row: SlotRow) -> bool:
    return answers_equal(one, other, row.answer_type, row.choices).equal


def answered(asked: Asked, text: str, *, terminated: bool, preference: Preference | None = None) -> Answered:
    """Score a completion against the target of the view that was shown.

    Args:
        asked: The question.
        text: The completion, decoded without special tokens.
        terminated: Whether a terminal token was sampled.
        preference: The model's own best answer beside an abstention, if that was measured.
    """
    row = asked.row
    result = score(
        text,
        terminated=terminated,
        gold=row.target,
        answer_type=row.answer_type,
        choices=row.choices,
        weights=WEIGHTS,
    )
    return Answered(row=row, image=asked.image, text=text, score=result, preference=preference)


def again(answer: Answer, asked: Asked) -> Answered:
    """Score an answer's text again, as that to a question."""
    preference = None
    if (own := answer.own_best) is not None:
        preference = Preference(body=own.body, log_prob=own.log_prob, abstention_log_prob=own.abstention_log_prob)
    return answered(asked, answer.text, terminated=answer.reason != TRUNCATED, preference=preference)


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
        "normalised_prediction": None,
        "right": False,
        "abstained": False,
        "said_full_answer": False,
    }
