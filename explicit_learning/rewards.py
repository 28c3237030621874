"""The one reward function of all RL arms.

It is not part of ``training``: a verifier recomputes every reward from the traces' completion texts, on a machine
without torch. Arms may differ in what is shown and what is gold, never in this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.answers import parse_answer
from explicit_learning.data.equality import answers_equal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.data.equality import AnswerType, Choice
    from explicit_learning.plan.typed_plan import Reward

__all__ = ["MALFORMED", "REWARD_VERSION", "TRUNCATED", "TRUNCATION_REJECT", "Score", "check_columns", "score"]

REWARD_VERSION = "answer/1"
TRUNCATED = "truncated_completion"
TRUNCATION_REJECT = "truncation_reject"
MALFORMED = "malformed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How one completion was scored, under the names of ``schemas/trace-row.schema.json``.

    Attributes:
        valid: Whether the completion keeps the answer contract.
        reason: Why not: the parser's reason code or ``truncated_completion``; ``None`` where it does.
        parsed_answer: The answer body; ``None`` where there is none.
        normalised_prediction: The body as it was compared; ``None`` where it was not, or has no canonical form.
        normalised_gold: The gold answer as it was compared.
        normaliser_branch: The comparison that decided, or ``malformed`` or ``truncation_reject``.
        components: The reward's parts by name.
        total: The reward: the sum of the parts.
    """

    valid: bool
    reason: str | None
    parsed_answer: str | None
    normalised_prediction: str | None
    normalised_gold: str | None
    normaliser_branch: str
    components: dict[str, float]
    total: float

    @property
    def in_baseline(self) -> bool:
        """Whether it takes part in its group's baseline: a truncated completion holds no answer."""
        return self.normaliser_branch != TRUNCATION_REJECT


def score(
    text: str,
    *,
    terminated: bool,
    gold: str,
    answer_type: AnswerType,
    choices: Sequence[Choice],
    weights: Reward,
) -> Score:
    """Score one completion.

    Args:
        text: The completion, decoded without special tokens.
        terminated: Whether a terminal token was sampled; a completion that hit the token cap is rejected unread.
        gold: The answer body that is right for the view that was shown.
        answer_type: How answers are compared.
        choices: The question's choices.
        weights: The plan's reward block.
    """
    if not terminated:
        return _rejected(TRUNCATED, TRUNCATION_REJECT, weights)
    parsed = parse_answer(text)
    if parsed.body is None:
        return _rejected(parsed.reason.value, MALFORMED, weights)
    compared = answers_equal(parsed.body, gold, answer_type, choices)
    components = {
        "answer": weights.answer if compared.equal else 0.0,
        "format": 0.0 if compared.equal else weights.format,
        "malformed": 0.0,
    }
    return Score(
        valid=True,
        reason=None,
        parsed_answer=parsed.body,
        normalised_prediction=compared.normalised_a,
        normalised_gold=compared.normalised_b,
        normaliser_branch=compared.branch.value,
        components=components,
        total=sum(components.values()),
    )


def _rejected(reason: str, branch: str, weights: Reward) -> Score:
    return Score(
        valid=False,
        reason=reason,
        parsed_answer=None,
        normalised_prediction=None,
        normalised_gold=None,
        normaliser_branch=branch,
        components={"answer": 0.0, "format": 0.0, "malformed": weights.malformed},
        total=weights.malformed,
    )


def check_columns(expected: int, columns: dict[str, Sequence[object]]) -> None:
    """Refuse metadata that is not exactly as long as the completions; a library would broadcast a single value.

    Raises:
        ValueError: Naming every column of another length.
    """
    wrong = {name: len(values) for name, values in columns.items() if len(values) != expected}
    if wrong:
        raise ValueError(f"{expected} completions, but columns of other lengths: {wrong}")
