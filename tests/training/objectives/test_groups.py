"""A group's payload, and how its rows are shared out over forwards and ranks."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.data.answers import AnswerType
from explicit_learning.data.rows import ImageRef, Relation, SlotRow, View
from explicit_learning.training.objectives.groups import gather_groups
from explicit_learning.training.objectives.scoring import chunks, shares

pytestmark = pytest.mark.objectives


def view(view_id: str, role: Relation) -> View:
    image = ImageRef(image_index=0, path=f"{view_id}.png", sha256="0" * 64, width=64, height=64)
    return View(view_id=view_id, role=role, state="made", images=(image,))


FULL = view("full", Relation.FULL)


def slot(selected: View, substitute: str | None = None) -> SlotRow:
    return SlotRow(
        slot_id=f"g.{selected.view_id}",
        group_id="g",
        base_id="g",
        split="train",
        question="Which digit?",
        choices=(),
        answer_type=AnswerType.NUMBER,
        relation=selected.role,
        full_view=FULL,
        selected_view=selected,
        full_answer="7",
        substitute_answer=substitute,
    )


def test_a_group_has_full_first_and_every_other_view_with_its_target() -> None:
    slots = [
        slot(view("substitute", Relation.SUBSTITUTE), "3"),
        slot(view("missing", Relation.MISSING)),
        slot(FULL),
        slot(view("control", Relation.CONTROL)),
    ]
    group = gather_groups(slots)["g"]
    assert group.candidates == ("7", "", "3")
    assert [(item.view.view_id, item.target) for item in group.views] == [
        ("full", 0),
        ("control", 0),
        ("missing", 1),
        ("substitute", 2),
    ]
    assert gather_groups(reversed(slots)) == {"g": group}


def test_a_substitute_answer_without_its_view_is_no_candidate() -> None:
    group = gather_groups([slot(FULL, "3"), slot(view("missing", Relation.MISSING), "3")])["g"]
    assert group.candidates == ("7", "")


def test_groups_are_told_apart() -> None:
    other = dataclasses.replace(slot(FULL), group_id="h", slot_id="h.full", full_answer="5")
    assert {name: group.candidates for name, group in gather_groups([slot(FULL), other]).items()} == {
        "g": ("7", ""),
        "h": ("5", ""),
    }


@given(st.integers(0, 60), st.integers(1, 17))
def test_rows_are_scored_once_each_in_as_few_forwards_as_their_limit_allows(rows: int, limit: int) -> None:
    batches = chunks(rows, limit)
    assert len(batches) == -(-rows // limit)
    assert [index for batch in batches for index in batch] == list(range(rows))
    assert all(0 < len(batch) <= limit for batch in batches)


@given(st.integers(0, 60), st.integers(1, 17))
def test_backward_passes_share_all_groups_evenly(groups: int, passes: int) -> None:
    parts = shares(groups, passes)
    assert len(parts) == passes
    assert [index for part in parts for index in part] == list(range(groups))
    assert {len(part) for part in parts} <= {groups // passes, -(-groups // passes)}
