"""What a validation writes into its row of the run's log, and which checkpoint is the best by these rows.

The rates stand in the log, which travels in checkpoints and in the completion marker. So the best checkpoint is never
remembered apart from them: a run that is resumed, its rotation, its marker and a verification all compute it from rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.rundir.answers import RATES
from explicit_learning.rundir.layout import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from explicit_learning.data.rows import SlotRow

__all__ = [
    "MALFORMED",
    "PREFIX",
    "QUESTIONS",
    "RIGHT",
    "TOKENS",
    "BestCheckpoint",
    "Found",
    "best_checkpoint",
    "relation_metrics",
    "validation_row",
]

PREFIX = "validation/"
QUESTIONS = f"{PREFIX}questions"
RIGHT = f"{PREFIX}right_ratio"
MALFORMED = f"{PREFIX}malformed_ratio"
TOKENS = f"{PREFIX}tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """The checkpoint with the most right answers, and the earliest of several.

    Attributes:
        checkpoint: Its folder in the run directory.
        step: Its step.
        right_ratio: Share of right answers to all held-out questions.
    """

    checkpoint: str
    step: int
    right_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a validation found, over all ranks.

    Attributes:
        right: Right answers, by relation.
        malformed: Answers that break the answer contract.
        tokens: Tokens of the answers, terminal tokens included.
    """

    right: Mapping[str, int]
    malformed: int
    tokens: int


def relation_metrics(relation: str) -> tuple[str, str]:
    """Return the names of a relation's metrics: its number of questions, and its rate of right answers."""
    name = f"{PREFIX}{relation.lower()}"
    return f"{name}/questions", f"{name}/{RATES[relation]}"


def validation_row(questions: Sequence[SlotRow], found: Found) -> dict[str, float]:
    """Return what the log's row of a validated step holds beside the trainer's metrics.

    Args:
        questions: The held-out questions, at least one.
        found: What was found.
    """
    asked = Counter(question.relation.value for question in questions)
    row: dict[str, float] = {}
    for relation in RATES:
        if count := asked[relation]:
            questions_metric, rate_metric = relation_metrics(relation)
            row |= {questions_metric: count, rate_metric: found.right[relation] / count}
    return row | {
        QUESTIONS: len(questions),
        RIGHT: sum(found.right.values()) / len(questions),
        MALFORMED: found.malformed / len(questions),
        TOKENS: found.tokens,
    }


def best_checkpoint(rows: Iterable[Mapping[str, Any]]) -> BestCheckpoint | None:
    """Return the best checkpoint by the rows of a log; ``None`` as long as nothing was validated."""
    validated = [(row[RIGHT], int(row["step"])) for row in rows if row.get(RIGHT) is not None]
    if not validated:
        return None
    ratio, step = max(validated, key=lambda pair: (pair[0], -pair[1]))
    return BestCheckpoint(checkpoint=checkpoint_name(step), step=step, right_ratio=ratio)
