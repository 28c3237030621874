"""The row of a validation, and the best checkpoint by a log's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.rows import slot_from_json
from explicit_learning.rundir.validation import RIGHT, BestCheckpoint, Found, best_checkpoint, validation_row
from tests.support.dataset_builder import Builder

if TYPE_CHECKING:
    from pathlib import Path


def test_a_row_has_the_rate_of_each_relation_that_is_asked_about(tmp_path: Path) -> None:
    slots = [slot_from_json(slot) for slot in Builder(tmp_path).slots]
    questions = [slot for slot in slots if slot.relation.value != "SUBSTITUTE"] + [slots[0]]
    right = {"FULL": 1, "CONTROL": 0, "MISSING": 1, "SUBSTITUTE": 0}
    assert validation_row(questions, Found(right=right, malformed=1, tokens=24)) == {
        "validation/full/questions": 2,
        "validation/full/accuracy": 0.5,
        "validation/control/questions": 1,
        "validation/control/accuracy": 0.0,
        "validation/missing/questions": 1,
        "validation/missing/abstention": 1.0,
        "validation/questions": 4,
        "validation/right_ratio": 0.5,
        "validation/malformed_ratio": 0.25,
        "validation/tokens": 24,
    }


@pytest.mark.parametrize(
    ("ratios", "best"),
    [
        ({2: 0.5, 4: 0.75, 6: 0.625}, 4),
        ({2: 0.5, 4: 0.75, 6: 0.75}, 4),
        ({2: 0.0, 4: 0.0}, 2),
        ({2: 0.1, 4: 0.2, 6: 0.3}, 6),
    ],
)
def test_the_best_is_the_earliest_with_the_most_right_answers(ratios: dict[int, float], best: int) -> None:
    rows = [{"step": step, "loss": 0.1} | ({RIGHT: ratios[step]} if step in ratios else {}) for step in range(1, 7)]
    expected = BestCheckpoint(checkpoint=f"checkpoint-{best}", step=best, right_ratio=ratios[best])
    assert best_checkpoint(rows) == expected


def test_nothing_is_the_best_before_the_first_validation() -> None:
    assert best_checkpoint([{"step": 1, "loss": 0.1}]) is None
