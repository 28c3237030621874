"""After the second pass: views that another row contradicts, or that give a held-out row away, are left out.

An item's views are made without a look at other items. Where a picture without its evidence is what another row shows,
one prompt would have two right answers; where two pictures differ in their evidence alone, a trained view can be what
evaluation shows. Both are found by what the pictures show, and the view that was made goes, not the row that was given.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from explicit_learning.data.answers import answers_equal
from explicit_learning.data.build.items import Item, StoredView
from explicit_learning.data.rows import Relation

if TYPE_CHECKING:
    from explicit_learning.data.build.state import State

__all__ = ["settle"]

CONTRADICTED = "another row shows the same with another answer"
TRAINED_TOO = "evaluation shows the same"
HELD_OUT_TOO = "training shows the same"


def settle(state: State) -> None:
    """Take out the views that contradict others or leak from one side to the other; FULL views stay."""
    _settle_golds(state)
    _settle_leaks(state)


def _settle_golds(state: State) -> None:
    """Take out views to which another answer is right than to a view that shows the same on the same side."""
    repeated = "SELECT ask, held_out FROM views GROUP BY ask, held_out HAVING COUNT(*) > 1 AND SUM(relation != 'FULL')"
    members_of = (
        "SELECT number, position, items.value, views.value FROM views JOIN items USING (number)"
        " WHERE views.ask = ? AND held_out = ? ORDER BY item_id, position"
    )
    for ask, held_out in list(state.rows(repeated)):
        members = [
            (number, position, Item.from_json(json.loads(item)), StoredView.from_json(json.loads(view)))
            for number, position, item, view in state.rows(members_of, ask, held_out)
        ]
        given = next((one for one in members if one[3].relation is Relation.FULL), None)
        differing = [one for one in members if not _agree(given or members[0], one)]
        for number, position, _, view in differing if given else members if differing else ():
            _take_out(state, number, position, view.relation, CONTRADICTED)


def _agree(one: tuple[int, int, Item, StoredView], other: tuple[int, int, Item, StoredView]) -> bool:
    kinds = {one[2].answer_type, other[2].answer_type}
    return any(answers_equal(one[3].target, other[3].target, kind, one[2].choices).equal for kind in kinds)


def _settle_leaks(state: State) -> None:
    """Take out views that the other side shows; MISSING views hold no evidence, and may be alike."""
    query = (
        "SELECT number, position, relation FROM views WHERE held_out = ? AND relation IN ('CONTROL', 'SUBSTITUTE')"
        " AND EXISTS (SELECT 1 FROM views AS other WHERE other.shown = views.shown AND other.held_out != views.held_out"
        " AND other.relation IN ('FULL', ?, ?))"
    )
    for held_out, others, reason in (
        (False, ("FULL", "FULL"), TRAINED_TOO),
        (True, ("CONTROL", "SUBSTITUTE"), HELD_OUT_TOO),
    ):
        for number, position, relation in list(state.rows(query, held_out, *others)):
            _take_out(state, number, position, relation, reason)


def _take_out(state: State, number: int, position: int, relation: str, reason: str) -> None:
    state.run("DELETE FROM views WHERE number = ? AND position = ?", number, position)
    state.run("INSERT INTO left_out VALUES (?, ?, ?)", number, relation, reason)
