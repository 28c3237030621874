"""Base items: a canvas, a question about one of its cells, and the four relations.

Three kinds of question exercise three of the answer contract's branches. All of them are about one cell, so the
evidence is that cell's box, and everything outside it is irrelevant by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from explicit_learning.data.digits.canvas import (
    CELL,
    DIGIT,
    GRID,
    HARDNESS,
    PLACES,
    Cell,
    Hardness,
    average_digit,
    compose,
    erase,
    paint_cell,
    replace_digit,
    scatter_pixels,
    shuffle_strokes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from explicit_learning.data.digits.pools import Pool, PoolName

__all__ = ["KINDS", "STATES", "Item", "Kind", "View", "answer_to", "make_item", "make_views"]

Kind = Literal["number", "boolean", "choice"]
Relation = Literal["FULL", "CONTROL", "MISSING", "SUBSTITUTE"]

# One cycle of kinds: three in five questions ask for the digit itself.
KINDS: tuple[Kind, ...] = ("number", "number", "boolean", "number", "choice")
RANGES = (
    ("A", "0 to 2", range(3)),
    ("B", "3 to 5", range(3, 6)),
    ("C", "6 or 7", range(6, 8)),
    ("D", "8 or 9", range(8, 10)),
)
THRESHOLD = 5

# view_id → (relation, state). A view's random numbers follow from its place here: new ones come last.
STATES: dict[str, tuple[Relation, str]] = {
    "full": ("FULL", "original"),
    "control": ("CONTROL", "other_cell_replaced"),
    "missing-erased": ("MISSING", "evidence_erased"),
    "missing-shuffled": ("MISSING", "evidence_shuffled"),
    "substitute": ("SUBSTITUTE", "evidence_replaced"),
    "missing-scattered": ("MISSING", "evidence_scattered"),
    "missing-averaged": ("MISSING", "evidence_averaged"),
}

# One stream of random numbers a split, so that adding items to one leaves the others as they were.
STREAMS: dict[PoolName, int] = {"pretraining": 1, "train": 2, "evaluation": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A base item.

    Attributes:
        kind: The kind of question, which is also its answer type.
        place: Index of the cell in question, in reading order.
        cells: The four cells of the original, in reading order.
        shown: Which cells are drawn; the others stay black.
        substitute: Pool member that replaces the digit in question.
        other_place: The irrelevant cell that CONTROL changes.
        other: Pool member that CONTROL puts there.
        hardness: How the cells were painted.
        key: What the item's random numbers are keyed by.
    """

    kind: Kind
    place: int
    cells: tuple[Cell, ...]
    shown: frozenset[int]
    substitute: int
    other_place: int
    other: int
    hardness: Hardness
    key: tuple[int, ...]

    @property
    def question(self) -> str:
        """The question as the prompt shows it."""
        where = PLACES[self.place]
        return {
            "number": f"Which digit is in the {where} cell?",
            "boolean": f"Is the digit in the {where} cell larger than {THRESHOLD}?",
            "choice": f"How large is the digit in the {where} cell?",
        }[self.kind]

    @property
    def choices(self) -> list[dict[str, str]]:
        """The choices, empty for open questions."""
        return [{"key": key, "text": text} for key, text, _ in RANGES] if self.kind == "choice" else []

    @property
    def answer(self) -> str:
        """The answer to the original."""
        return answer_to(self.kind, self.cells[self.place].label)

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The evidence: the cell's half-open box ``(x0, y0, x1, y1)``. Unit: pixels."""
        row, column = divmod(self.place, GRID)
        return column * CELL, row * CELL, (column + 1) * CELL, (row + 1) * CELL

    @property
    def digit_box(self) -> tuple[int, int, int, int]:
        """The half-open box ``(x0, y0, x1, y1)`` of the digit itself, which leaves room around it. Unit: pixels."""
        left, top = self.box[0] + self.cells[self.place].left, self.box[1] + self.cells[self.place].top
        return left, top, left + DIGIT, top + DIGIT


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A rendering of an item.

    Attributes:
        view_id: Name of the view, a key of `STATES`.
        relation: What it is to the item.
        state: How it was made.
        pixels: Grey levels; shape (64, 64).
        target: The answer body that is right for it; empty where the evidence is missing.
    """

    view_id: str
    relation: Relation
    state: str
    pixels: NDArray[np.uint8]
    target: str


def answer_to(kind: Kind, digit: int) -> str:
    """Return the answer body for a digit."""
    if kind == "number":
        return str(digit)
    if kind == "boolean":
        return "yes" if digit > THRESHOLD else "no"
    return next(key for key, _, digits in RANGES if digit in digits)


def make_item(
    pool: Pool,
    *,
    seed: int,
    index: int,
    stream: int = 0,
    kinds: Sequence[Kind] = KINDS,
    filled: int = len(PLACES),
    hardness: Hardness = HARDNESS,
) -> Item:
    """Return the item that a seed, a stream and an index name.

    Args:
        pool: The digits to use.
        seed: The dataset's seed.
        index: Position in the stream; the kind of question follows from it.
        stream: Which of the split's independent series of items.
        kinds: The kinds of question, taken in turn.
        filled: How many cells are drawn (at least the one in question).
        hardness: How hard the cells are to read.
    """
    key = (seed, STREAMS[pool.name], stream, index)
    rng = np.random.default_rng(key)
    kind = kinds[index % len(kinds)]
    order = rng.permutation(len(PLACES))
    place = int(order[0])
    members = rng.integers(len(pool.labels), size=len(PLACES))
    cells = tuple(paint_cell(rng, pool, int(member), hardness) for member in members)
    answer = answer_to(kind, int(pool.labels[members[place]]))
    differing = [digit for digit in range(10) if answer_to(kind, digit) != answer]
    others = np.flatnonzero(np.isin(pool.labels, differing))
    other_place = int(order[1])
    changed = np.flatnonzero(pool.labels != pool.labels[members[other_place]])
    return Item(
        kind=kind,
        place=place,
        cells=cells,
        shown=frozenset(order[:filled].tolist()),
        substitute=int(rng.choice(others)),
        other_place=other_place,
        other=int(rng.choice(changed)),
        hardness=hardness,
        key=key,
    )


def make_views(item: Item, pool: Pool, view_ids: tuple[str, ...]) -> list[View]:
    """Return views of an item.

    Each view has random numbers of its own, so which views are asked for changes none of them.
    """
    views = []
    for view_id in view_ids:
        relation, state = STATES[view_id]
        rng = np.random.default_rng((*item.key, list(STATES).index(view_id)))
        cells = list(item.cells)
        target = item.answer
        asked, other = cells[item.place], cells[item.other_place]
        if relation == "CONTROL":
            cells[item.other_place] = replace_digit(other, pool, item.other)
        elif relation == "SUBSTITUTE":
            cells[item.place] = replace_digit(asked, pool, item.substitute)
            target = answer_to(item.kind, int(pool.labels[item.substitute]))
        elif relation == "MISSING":
            cells[item.place] = _without_evidence(rng, asked, state, item.hardness)
            target = ""
        views.append(
            View(view_id=view_id, relation=relation, state=state, pixels=compose(cells, item.shown), target=target)
        )
    return views


def _without_evidence(rng: np.random.Generator, cell: Cell, state: str, hardness: Hardness) -> Cell:
    """Return a cell whose digit a removal operator made unreadable."""
    if state == "evidence_erased":
        return erase(rng, cell, hardness)
    if state == "evidence_shuffled":
        return shuffle_strokes(rng, cell)
    return scatter_pixels(rng, cell) if state == "evidence_scattered" else average_digit(cell)
