"""The second pass: every item's views, made from the pictures that the first one wrote."""

from __future__ import annotations

import json
import time
from itertools import islice
from typing import TYPE_CHECKING

from explicit_learning.data.build.intake import COMMIT_SECONDS, note_files
from explicit_learning.data.build.items import Item, asked, shown
from explicit_learning.data.build.options import EVALUATION
from explicit_learning.data.build.rendering import Rendered, ToRender, render_items
from explicit_learning.data.build.stopping import refuse_if_stopped
from explicit_learning.data.build.substitutes import Asker, choose_donor
from explicit_learning.data.keys import keyed_digest
from explicit_learning.data.rows import Relation
from explicit_learning.files.progress import progress
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from explicit_learning.data.build.pool import Workers
    from explicit_learning.data.build.rendering import Rendering
    from explicit_learning.data.build.state import State

__all__ = ["make_all_views"]

_DONOR_DOMAIN = "explicit-learning/built-donor/1"
_CHUNK = 4
# Items read at once, in the order of their ids.
_BATCH = 256
# Rows that are asked to lend their evidence: those behind the item in the order of ids, and then from the first.
_CANDIDATES = 64
NO_DONOR = "no other row asks the same with another answer and evidence that fits"


def make_all_views(
    state: State, rendering: Rendering, workers: Workers, *, paste: bool, stop: Callable[[], bool]
) -> None:
    """Make the views that are not there yet.

    Args:
        state: Has the items, and takes the views.
        rendering: How they are made.
        workers: Does it.
        paste: Whether evidence of other rows is pasted for SUBSTITUTE.
        stop: Whether the build is to stop.

    Raises:
        Refusal: If the build is to stop, or the disk is full.
        OSError: If the disk is full.
    """
    done = state.count("SELECT COUNT(*) FROM items WHERE done")
    total = state.count("SELECT COUNT(*) FROM items")
    waiting: list[Rendered] = []
    committed = time.monotonic()
    with progress("making views", total, "items") as advance:
        advance(done)
        tasks = ((rendering, chunk) for chunk in _chunks(_items(state, rendering.seed, paste=paste)))
        for rendered in workers(render_items, tasks):
            waiting += rendered
            advance(len(rendered))
            if time.monotonic() - committed >= COMMIT_SECONDS:
                _commit(state, rendering.root, waiting, paste=paste)
                waiting, committed = [], time.monotonic()
                refuse_if_stopped(stop)
    _commit(state, rendering.root, waiting, paste=paste)


def _chunks(items: Iterator[ToRender]) -> Iterator[list[ToRender]]:
    while chunk := list(islice(items, _CHUNK)):
        yield chunk


def _items(state: State, seed: int, *, paste: bool) -> Iterator[ToRender]:
    """Yield the items without views, each once, whatever is noted of them meanwhile."""
    query = "SELECT number, item_id, value, part, turn, lending FROM items"
    query += " WHERE NOT done AND item_id > ? ORDER BY item_id LIMIT ?"
    last = ""
    while batch := list(state.rows(query, last, _BATCH)):
        for number, item_id, value, part, turn, lending in batch:
            item = Item.from_json(json.loads(value))
            wants = paste and lending is not None and not item.substitute_images
            donor = _donor(state, item, part, lending, seed) if wants else None
            yield ToRender(number=number, part=part, item=item, turn=turn, donor=donor)
            last = item_id


def _donor(state: State, item: Item, part: str, lending: str, seed: int) -> Item | None:
    """Return whose evidence is pasted into an item's, of the same part; ``None`` without one that fits."""
    query = "SELECT value FROM items WHERE part = ? AND lending = ? AND item_id {} ? ORDER BY item_id LIMIT ?"
    known: dict[str, Item] = {}
    for order in (">", "<"):
        room = _CANDIDATES - len(known)
        for (value,) in state.rows(query.format(order), part, lending, item.item_id, room):
            candidate = Item.from_json(json.loads(value))
            known[candidate.item_id] = candidate
    key = keyed_digest(_DONOR_DOMAIN, seed, item.item_id)
    chosen = choose_donor(_asker(item), map(_asker, known.values()), key=key)
    return None if chosen is None else known[chosen.item_id]


def _asker(item: Item) -> Asker:
    place = item.place
    return Asker(
        item_id=item.item_id,
        question=item.question,
        answer_type=item.answer_type,
        answer=item.answer,
        choices=item.choices,
        size=(0, 0) if place is None else (place.bottom - place.top, place.right - place.left),
    )


def _commit(state: State, root: Path, rendered: Sequence[Rendered], *, paste: bool) -> None:
    with state.transaction():
        note_files(state, root, (image for one in rendered for view in one.views for image in view.images))
        for one in rendered:
            _note(state, one, paste=paste)


def _note(state: State, one: Rendered, *, paste: bool) -> None:
    item = one.item
    for position, view in enumerate(one.views):
        state.run(
            "INSERT INTO views VALUES (?, ?, ?, ?, ?, ?, ?)",
            one.number,
            position,
            json.dumps(to_json(view)),
            view.relation,
            one.part == EVALUATION,
            asked(item.question, item.choices, view.images),
            shown(view.images),
        )
    left_out = [(one.number, left.relation, str(left.reason)) for left in one.left_out]
    if paste and not one.has_substitute:
        left_out.append((one.number, Relation.SUBSTITUTE, NO_DONOR))
    state.run_many("INSERT INTO left_out VALUES (?, ?, ?)", left_out)
    state.run("UPDATE items SET done = 1 WHERE number = ?", one.number)
