"""All views of a group together: the grouped objectives need them beside the one that a slot shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.rows import Relation
from explicit_learning.training.objectives.candidates import candidate_bodies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from explicit_learning.data.answers import Choice
    from explicit_learning.data.rows import SlotRow, View

__all__ = ["Group", "GroupView", "gather_groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One view of a group, and the candidate that is right for it."""

    view: View
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One base item with all its views.

    Attributes:
        group_id: The group.
        question: The question that every view is asked.
        choices: Its choices.
        candidates: Answer bodies that are scored: full answer, abstention, substitutes.
        views: FULL first, then the others by view id.
    """

    group_id: str
    question: str
    choices: tuple[Choice, ...]
    candidates: tuple[str, ...]
    views: tuple[GroupView, ...]

    @property
    def full(self) -> View:
        """The FULL view."""
        return self.views[0].view


def gather_groups(slots: Iterable[SlotRow]) -> dict[str, Group]:
    """Return every group by its id, whatever the order of the slots.

    The slots must have passed their gate: what a group's slots share is equal, and its view ids are unique.
    """
    members: dict[str, list[SlotRow]] = {}
    for slot in sorted(slots, key=lambda slot: slot.selected_view.view_id):
        members.setdefault(slot.group_id, []).append(slot)
    return {group_id: _group(rows) for group_id, rows in members.items()}


def _group(rows: list[SlotRow]) -> Group:
    first = rows[0]
    others = [row for row in rows if row.relation is not Relation.FULL]
    substitutes = [row.target for row in others if row.relation is Relation.SUBSTITUTE]
    candidates = candidate_bodies(first.full_answer, substitutes)
    full = GroupView(view=first.full_view, target=0)
    views = [GroupView(view=row.selected_view, target=candidates.index(row.target)) for row in others]
    return Group(
        group_id=first.group_id,
        question=first.question,
        choices=first.choices,
        candidates=candidates,
        views=(full, *views),
    )
