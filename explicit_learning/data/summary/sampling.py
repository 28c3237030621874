"""A few groups of a dataset, drawn while its rows are read, to be looked at.

A group's place in the draw is a hash of its id and a seed: which groups are drawn depends neither on the order of the
rows nor on the file that they stand in, and one pass that keeps the groups with the smallest hashes finds them all.
"""

from __future__ import annotations

import hashlib
import json
from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.rows import Relation, SlotRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.data.answers import Choice
    from explicit_learning.data.rows import EvidenceBox, EvidenceMask, ImageRef, SftRow

__all__ = ["GroupSample", "SampledGroup", "SampledView"]

# Goes up with every change of the draw.
_DOMAIN = "explicit-learning/shown-groups/1"
# SFT rows hold no evidence, and rarely a whole group: they are drawn only where the others do not suffice.
FIRST_KINDS = ("slots", "evaluation")
LAST_KIND = "sft"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledView:
    """A view of a group.

    Attributes:
        view_id: Its name, unique inside the group.
        relation: What it is to the base item.
        state: How it was rendered.
        images: Its images, in the order of the prompt.
        boxes: Evidence as boxes.
        masks: Evidence as mask files.
        target: The answer body that is right for it; ``None`` where its row lacks it.
        row_id: Name of the row that shows it.
    """

    view_id: str
    relation: Relation
    state: str
    images: tuple[ImageRef, ...]
    boxes: tuple[EvidenceBox, ...] = ()
    masks: tuple[EvidenceMask, ...] = ()
    target: str | None
    row_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGroup:
    """A base item with all of its views that the file has, FULL first."""

    kind: str
    group_id: str
    split: str
    question: str
    choices: tuple[Choice, ...]
    answer_type: str
    views: tuple[SampledView, ...]


class GroupSample:
    """Draws groups from the rows that it is shown."""

    def __init__(self, *, groups: int, seed: int) -> None:
        """Start empty.

        Args:
            groups: How many groups to draw from the whole dataset.
            seed: Another one draws other groups.
        """
        self._groups = groups
        self._seed = seed
        self._drawn: dict[str, _Draw] = {}

    def add(self, kind: str, row: SlotRow | SftRow) -> None:
        """Show a row of a file of a kind (``slots``, ``sft`` or ``evaluation``)."""
        self._drawn.setdefault(kind, _Draw(self._groups, self._seed)).add(row)

    def groups(self) -> tuple[SampledGroup, ...]:
        """Return the groups: as many of slots as of evaluation rows, and SFT rows where these are too few."""
        drawn = {kind: draw.rows() for kind, draw in self._drawn.items()}
        held = {kind: len(drawn.get(kind, ())) for kind in (*FIRST_KINDS, LAST_KIND)}
        slots, evaluation = (held[kind] for kind in FIRST_KINDS)
        half = -(-self._groups // 2)
        counts = dict.fromkeys(held, 0)
        counts["slots"] = min(slots, max(half, self._groups - evaluation))
        counts["evaluation"] = min(evaluation, self._groups - counts["slots"])
        counts[LAST_KIND] = min(held[LAST_KIND], self._groups - counts["slots"] - counts["evaluation"])
        return tuple(_group(kind, rows) for kind, count in counts.items() for rows in drawn.get(kind, [])[:count])


class _Draw:
    """The rows of the groups with the smallest hashes, of one kind of file."""

    def __init__(self, groups: int, seed: int) -> None:
        self._limit = groups
        self._seed = seed
        self._order: list[tuple[bytes, str]] = []
        self._rows: dict[str, list[SlotRow | SftRow]] = {}

    def add(self, row: SlotRow | SftRow) -> None:
        if row.group_id not in self._rows:
            text = json.dumps([_DOMAIN, self._seed, row.group_id], separators=(",", ":"))
            place = (hashlib.sha256(text.encode()).digest(), row.group_id)
            if len(self._order) == self._limit and place > self._order[-1]:
                return
            insort(self._order, place)
            self._rows[row.group_id] = []
            if len(self._order) > self._limit:
                # It does not come back: the largest hash that is kept only becomes smaller.
                del self._rows[self._order.pop()[1]]
        self._rows[row.group_id].append(row)

    def rows(self) -> list[list[SlotRow | SftRow]]:
        return [self._rows[group_id] for _, group_id in self._order]


def _group(kind: str, rows: Sequence[SlotRow | SftRow]) -> SampledGroup:
    views: dict[str, SampledView] = {}
    for row in rows:
        view = _of_slot(row) if isinstance(row, SlotRow) else _of_certificate(row)
        views.setdefault(view.view_id, view)
    order = list(Relation)
    first = rows[0]
    return SampledGroup(
        kind=kind,
        group_id=first.group_id,
        split=first.split,
        question=first.question,
        choices=first.choices,
        answer_type=first.answer_type.value,
        views=tuple(sorted(views.values(), key=lambda view: (order.index(view.relation), view.view_id))),
    )


def _of_slot(row: SlotRow) -> SampledView:
    view = row.selected_view
    return SampledView(
        view_id=view.view_id,
        relation=row.relation,
        state=view.state,
        images=view.images,
        boxes=view.boxes,
        masks=view.masks,
        target=None if row.relation is Relation.SUBSTITUTE and row.substitute_answer is None else row.target,
        row_id=row.slot_id,
    )


def _of_certificate(row: SftRow) -> SampledView:
    return SampledView(
        view_id=row.view_id,
        relation=row.relation,
        state=row.state,
        images=row.images,
        target=row.target,
        row_id=row.record_id,
    )
