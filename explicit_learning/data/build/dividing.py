"""Between the passes: contradictions are refused, pictures that belong together linked, and the items dealt out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from explicit_learning.data.answers import answers_equal
from explicit_learning.data.build.duplicates import component_labels
from explicit_learning.data.build.items import Item
from explicit_learning.data.build.options import EVALUATION, HASH_BITS, PARTS, SFT, SLOTS, TRAIN
from explicit_learning.data.build.refusals import note_refused, refuse_rows, refused_faults
from explicit_learning.data.build.source import RefusedRow, RowFault
from explicit_learning.data.build.splits import deal, part_asked
from explicit_learning.data.keys import keyed_digest
from explicit_learning.errors import Context, FaultCollector, found_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from explicit_learning.data.build.options import Shares
    from explicit_learning.data.build.state import State

__all__ = ["Division", "divide", "refuse_contradictions", "refuse_unknown_splits"]

_LARGEST = 5  # components whose size is told
_SPLIT = Context(gate="split")
_TURN_DOMAIN = "explicit-learning/built-certificate/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How the items are dealt out.

    Attributes:
        shares: The share of each part; with a column, of the training rows that it does not decide.
        near_bits: In how many bits of `HASH_BITS` nearly equal pictures may differ; ``None`` for equal pixels only.
        obeys_column: Whether the source's own splits are obeyed.
        seed: What components of one size are ordered by.
    """

    shares: Shares
    near_bits: int | None
    obeys_column: bool
    seed: int


def refuse_contradictions(state: State) -> None:
    """Refuse all rows that ask the same about pictures that show the same, where their answers differ."""
    repeated = state.rows("SELECT ask FROM items GROUP BY ask HAVING COUNT(*) > 1 ORDER BY MIN(number)")
    for ask in [ask for (ask,) in repeated]:
        rows = state.rows("SELECT number, value FROM items WHERE ask = ? ORDER BY number", ask)
        members = [(number, Item.from_json(json.loads(value))) for number, value in rows]
        first = members[0][1]
        other = next((item for _, item in members if not _agree(first, item)), None)
        for number, item in members if other is not None else ():
            against = other if _agree(first, item) and other is not None else first
            found = f"{found_text(item.answer)}, but {found_text(against.answer)} at {against.where}"
            expected = "one right answer to one question about pictures that show the same"
            _refuse(state, number, item, RowFault(field="answer", found=found, expected=expected))


def _agree(one: Item, other: Item) -> bool:
    kinds = {one.answer_type, other.answer_type}
    return any(answers_equal(one.answer, other.answer, kind, one.choices).equal for kind in kinds)


def refuse_unknown_splits(state: State) -> None:
    """Refuse rows whose split is not one that the build knows."""
    query = "SELECT number, value FROM items ORDER BY number"
    unknown = [
        (number, item)
        for number, item in ((number, Item.from_json(json.loads(value))) for number, value in state.rows(query))
        if part_asked(item.asked_split) is None
    ]
    expected = "train, sft, slots, evaluation, or another word for one of these (test, validation, dev)"
    for number, item in unknown:
        found = "a row without a split" if item.asked_split is None else found_text(item.asked_split)
        _refuse(state, number, item, RowFault(field="split", found=found, expected=expected))


def _refuse(state: State, number: int, item: Item, fault: RowFault) -> None:
    note_refused(state, RefusedRow(where=item.where, number=number, item_id=item.source_id, faults=(fault,)))
    for table in ("items", "item_pictures", "told"):
        state.run(f"DELETE FROM {table} WHERE number = ?", number)  # noqa: S608 - names of tables


def divide(state: State, division: Division) -> None:
    """Give every item its component and its part.

    Raises:
        Refusal: If there is nothing to deal out, with what is wrong with the rows; if a part that is asked for stays
            empty; or if the source's own splits share a picture.
    """
    state.run("DELETE FROM pictures WHERE id NOT IN (SELECT picture FROM item_pictures)")  # of refused rows
    numbers, labels = _components(state, division.near_bits)
    if not len(numbers):
        refuse_rows(state)
        raise _SPLIT.refusal(found="a source without rows", expected="at least one row", fix="check the source's file")
    found, places, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    names = _names(state, found)
    if division.obeys_column:
        parts = _parts_of_column(state, division, places, names)
    else:
        dealt = deal(names, sizes, parts=PARTS, shares=division.shares.of(PARTS), seed=division.seed)
        parts = [dealt[place] for place in places.tolist()]
        _refuse_empty_parts(state, division, parts, sizes)
    state.run_many(
        "UPDATE items SET part = ?, component = ? WHERE number = ?",
        zip(parts, places.tolist(), numbers.tolist(), strict=True),
    )
    _take_turns(state, division.seed)
    largest = sorted(sizes.tolist(), reverse=True)[:_LARGEST]
    state.set("components", {"count": len(found), "largest": largest})


def _take_turns(state: State, seed: int) -> None:
    """Number the items of SFT in an order drawn by the seed: their certificates show the relations in turn."""
    items = state.rows("SELECT number, item_id FROM items WHERE part = ?", SFT)
    drawn = sorted((keyed_digest(_TURN_DOMAIN, seed, item_id), number) for number, item_id in items)
    turns = ((turn, number) for turn, (_, number) in enumerate(drawn))
    state.run_many("UPDATE items SET turn = ? WHERE number = ?", turns)


def _components(state: State, near_bits: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of all items and the label of the component of each; labels do not depend on row order."""
    pictures = state.count("SELECT COUNT(*) FROM pictures")
    hashes = np.zeros((pictures, HASH_BITS // 8), dtype=np.uint8)
    ranks = np.zeros(state.count("SELECT MAX(id) FROM pictures") + 1, dtype=np.int64)
    for rank, (identifier, hashed) in enumerate(state.rows("SELECT id, hash FROM pictures ORDER BY pixels")):
        hashes[rank] = np.frombuffer(hashed, dtype=np.uint8)
        ranks[identifier] = rank
    pairs = state.rows("SELECT number, picture FROM item_pictures ORDER BY number")
    uses = np.fromiter((value for pair in pairs for value in pair), dtype=np.int64).reshape(-1, 2)
    uses[:, 1] = ranks[uses[:, 1]]
    same = np.flatnonzero(np.diff(uses[:, 0]) == 0)
    together = np.stack([uses[same, 1], uses[same + 1, 1]], axis=1)
    labels = component_labels(hashes, together, near_bits=near_bits)
    numbers, first = np.unique(uses[:, 0], return_index=True)
    return numbers, labels[uses[first, 1]]


def _names(state: State, labels: NDArray[np.int64]) -> list[str]:
    """Return what the first picture of each component shows; labels are ranks, in ascending order."""
    wanted = iter(labels.tolist())
    names, following = [], next(wanted, None)
    for rank, (pixels,) in enumerate(state.rows("SELECT pixels FROM pictures ORDER BY pixels")):
        if rank == following:
            names.append(pixels)
            following = next(wanted, None)
    return names


def _refuse_empty_parts(state: State, division: Division, parts: list[str], sizes: NDArray[np.int64]) -> None:
    """Refuse a deal in which a part that is asked for has no item."""
    asked = [part for part, share in zip(PARTS, division.shares.of(PARTS), strict=True) if share > 0]
    if empty := [part for part in asked if part not in parts]:
        near = "equal pixels" if division.near_bits is None else f"at most {division.near_bits} of {HASH_BITS} bits"
        largest = int(sizes.max())
        faults = FaultCollector(_SPLIT)
        faults.report(
            file=state.path.parent,
            pointer="--split",
            found=f"no item for {' and '.join(empty)}: {len(parts):,} items in {len(sizes):,} components, the largest "
            f"of {largest:,} (pictures linked by {near})",
            expected="items in every part",
            fix="lower --near-duplicates if these pictures are different ones (`--near-duplicates off` links equal "
            "pixels only), set the share to 0, or add rows with other pictures; then remove the folder named here",
        )
        faults.extend(refused_faults(state))  # whatever is wrong with them may be why
        faults.refuse_if_any()


def _parts_of_column(state: State, division: Division, places: NDArray[np.int64], names: list[str]) -> list[str]:
    """Return each item's part as the source asks for it.

    Raises:
        Refusal: If a picture is in evaluation and in training.
    """
    asked: list[str] = []
    trained: dict[int, str] = {}
    held_out: dict[int, str] = {}
    faults = FaultCollector(_SPLIT)
    rows = state.rows("SELECT value FROM items ORDER BY number")
    for place, (value,) in zip(places.tolist(), rows, strict=True):
        item = Item.from_json(json.loads(value))
        part = part_asked(item.asked_split) or ""
        asked.append(part)
        mine, other = (held_out, trained) if part == EVALUATION else (trained, held_out)
        mine.setdefault(place, item.where)
        if place in other:
            faults.report(
                file=item.where,
                pointer="split",
                found=f"{item.asked_split}, but {other[place]} shares a picture with it and is on the other side",
                expected="no picture, nor its near copy, both trained on and evaluated on",
                fix="move one of the rows, or leave it out; --near-duplicates says what a near copy is",
            )
    faults.refuse_if_any()
    is_open = np.array([part == TRAIN for part in asked])
    found, compact, sizes = np.unique(places[is_open], return_inverse=True, return_counts=True)
    dealt = deal(
        [names[place] for place in found.tolist()],
        sizes,
        parts=(SFT, SLOTS),
        shares=division.shares.of((SFT, SLOTS)),
        seed=division.seed,
    )
    following = iter(compact.tolist())
    return [dealt[next(following)] if part == TRAIN else part for part in asked]
