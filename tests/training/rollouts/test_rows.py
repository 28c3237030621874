"""The arms' table, turned into prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.data.images import ImageStore
from explicit_learning.data.prompt import prompt_messages
from explicit_learning.data.reading import read_slot_rows
from tests.support.plans import MODEL

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

# DESIGN's table: which relation's view is shown for a slot of each relation.
SHOWN = {
    "answer_grpo": {"FULL": "FULL", "CONTROL": "FULL", "MISSING": "FULL", "SUBSTITUTE": "FULL"},
    "answer_grpo_augmented": {"FULL": "FULL", "CONTROL": "CONTROL", "MISSING": "FULL", "SUBSTITUTE": "FULL"},
    "intervention_grpo": {name: name for name in ("FULL", "CONTROL", "MISSING", "SUBSTITUTE")},
    "defacto": {"FULL": "FULL", "CONTROL": "CONTROL", "MISSING": "MISSING", "SUBSTITUTE": "FULL"},
    "papo": {"FULL": "FULL", "CONTROL": "FULL", "MISSING": "FULL", "SUBSTITUTE": "FULL"},
    "evi_po": {name: name for name in ("FULL", "CONTROL", "MISSING", "SUBSTITUTE")},
}


@pytest.mark.parametrize("arm", SHOWN)
def test_arm_decides_view_and_gold(digits: Path, arm: str) -> None:
    from explicit_learning.data.shown_view import gold_answer, shown_view

    for slot in read_slot_rows(digits / "slots.jsonl"):
        shown = SHOWN[arm][slot.relation.value]
        assert shown_view(slot, ARMS[arm]).role == shown
        expected = {"FULL": slot.full_answer, "CONTROL": slot.full_answer, "MISSING": ""}
        assert gold_answer(slot, ARMS[arm]) == expected.get(shown, slot.substitute_answer)


def test_rows_carry_what_the_schedule_asks_for(digits: Path) -> None:
    from explicit_learning.plan.geometry import Geometry
    from explicit_learning.plan.schedule import REUSED, Schedule
    from explicit_learning.training.policy import load_processor
    from explicit_learning.training.rollouts.encoded_views import ViewEncoder
    from explicit_learning.training.rollouts.rows import RolloutRows

    slots = read_slot_rows(digits / "slots.jsonl")
    schedule = Schedule(
        slot_ids=tuple(slot.slot_id for slot in slots),
        data_seed=1,
        geometry=Geometry(batch=8, accumulation=1, ranks=1, generations=4, iterations=2, completion_tokens=12),
        steps=4,
    )
    processor = load_processor(MODEL, max_image_tokens=None)
    encoder = ViewEncoder(processor=processor, images=ImageStore(digits), system="Look.")
    rows = RolloutRows(slots, arm=ARMS["intervention_grpo"], schedule=schedule, encoder=encoder)
    assert len(rows) == 4 * 8
    assert rows[REUSED] == {}
    by_id = {slot.slot_id: slot for slot in slots}
    for index in (0, 5, 15):
        row, rollout = rows[index], schedule.rollout(index)
        slot = by_id[rollout.slot_id]
        assert row["slot_prompt"].rollout == rollout
        assert row["slot_prompt"].gold == slot.target
        assert row["prompt"] == prompt_messages("Look.", slot.question, slot.choices, image_count=1)
        view = row["encoded_view"]
        assert view.image_grid_thw.tolist() == [[1, 4, 4]]
        asked = processor.tokenizer.decode(view.ids[view.kinds == 0])
        assert all(part in asked for part in ("Look.", slot.question))
        # TRL finds no images.
        assert set(row) == set(RolloutRows.COLUMNS) == {"prompt", "encoded_view", "slot_prompt"}
    group = [rows[index]["encoded_view"] for index in range(8)]
    assert group == [group[0]] * 4 + [group[4]] * 4
    assert group[0] is not group[4]
