"""What an arm shows of a slot, and which answer is right for it: the table of arms, applied to one slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.data.rows import Relation

if TYPE_CHECKING:
    from explicit_learning.arms import Arm
    from explicit_learning.data.rows import SlotRow, View

__all__ = ["gold_answer", "shown_view"]


def shown_view(slot: SlotRow, arm: Arm) -> View:
    """Return the view of a slot that an arm shows: the selected one if the arm shows its relation, else FULL."""
    return slot.selected_view if slot.relation.value in arm.shown else slot.full_view


def gold_answer(slot: SlotRow, arm: Arm) -> str:
    """Return the answer body that is right for the view that an arm shows."""
    return slot.answer_under(slot.relation if slot.relation.value in arm.shown else Relation.FULL)
