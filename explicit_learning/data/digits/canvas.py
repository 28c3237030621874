"""Canvases of four handwritten digits, and what can be done to one cell of them.

A canvas is two by two cells of 32 pixels: with the patch size and the merge of Qwen3.5's vision tower a cell is exactly
one image token, so that evidence boxes, image masks and attention can be checked by hand.

A cell is painted in layers (ground, fragments of other digits, the digit), and an intervention changes the digit's
layer alone. Everything else stays pixel for pixel, so the views of one item differ in nothing but the evidence. Removed
evidence leaves a fragment behind, and legible cells hold fragments of the same size: only the digit itself shows that a
digit is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from explicit_learning.data.digits.pools import Pool

__all__ = [
    "CANVAS",
    "CELL",
    "DIGIT",
    "GRID",
    "HARDNESS",
    "PLACES",
    "PLAIN",
    "Cell",
    "Hardness",
    "average_digit",
    "compose",
    "erase",
    "paint_cell",
    "replace_digit",
    "scatter_pixels",
    "shuffle_strokes",
]

CELL = 32
GRID = 2
CANVAS = CELL * GRID
PLACES = ("upper left", "upper right", "lower left", "lower right")

SOURCE = 8
SCALE = 3
DIGIT = SOURCE * SCALE
GREY = 15
TILE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardness:
    """How hard a cell is to read.

    Attributes:
        noise: Largest grey level of the ground's uniform noise (0 to 255).
        fragments: Fragments of other digits in each cell.
        fragment_side: Side of a fragment, and of the part that an erased digit leaves behind. Unit: source pixels.
        dropout: Share of a legible digit's source pixels that are missing.
        jitter: Largest offset of a digit from its cell's middle, to each side. Unit: pixels, at most 4.
    """

    noise: int
    fragments: int
    fragment_side: int
    dropout: float
    jitter: int


# Tuned on the shipped model so that its held-out accuracy stays well below 1 and abstention is not learnt at once.
HARDNESS = Hardness(noise=90, fragments=3, fragment_side=3, dropout=0.08, jitter=2)
PLAIN = Hardness(noise=0, fragments=0, fragment_side=3, dropout=0.0, jitter=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell's layers, before they are put together.

    Attributes:
        ground: Noise and fragments; shape (32, 32).
        digit: The digit's grey levels, 0 to 16; shape (8, 8).
        label: The digit, 0 to 9; of an erased or shuffled cell, the digit that was there.
        kept: Which source pixels of a legible digit are drawn; shape (8, 8).
        left: Offset of the digit in its cell. Unit: pixels.
        top: Offset of the digit in its cell. Unit: pixels.
    """

    ground: NDArray[np.uint8]
    digit: NDArray[np.uint8]
    label: int
    kept: NDArray[np.bool_]
    left: int
    top: int


def paint_cell(rng: np.random.Generator, pool: Pool, member: int, hardness: Hardness) -> Cell:
    """Return a cell that shows a pool's digit, with ground, place and lost pixels drawn from a generator."""
    ground = rng.integers(0, hardness.noise + 1, size=(CELL, CELL)).astype(np.uint8)
    side = hardness.fragment_side
    for _ in range(hardness.fragments):
        source = pool.images[rng.integers(len(pool.images))]
        row, column = rng.integers(0, SOURCE - side + 1, size=2)
        top, left = rng.integers(0, CELL - side * SCALE + 1, size=2)
        _draw(ground, source[row : row + side, column : column + side], top=int(top), left=int(left))
    middle = (CELL - DIGIT) // 2
    top, left = middle + rng.integers(-hardness.jitter, hardness.jitter + 1, size=2)
    return Cell(
        ground=ground,
        digit=pool.images[member],
        label=int(pool.labels[member]),
        kept=rng.random((SOURCE, SOURCE)) >= hardness.dropout,
        left=int(left),
        top=int(top),
    )


def replace_digit(cell: Cell, pool: Pool, member: int) -> Cell:
    """Return the cell with another digit in the same place, on the same ground, with the same pixels lost."""
    return replace(cell, digit=pool.images[member], label=int(pool.labels[member]))


def erase(rng: np.random.Generator, cell: Cell, hardness: Hardness) -> Cell:
    """Return the cell with its digit removed but for a fragment: the operator that training sees."""
    side = hardness.fragment_side
    row, column = rng.integers(0, SOURCE - side + 1, size=2)
    rest = np.zeros_like(cell.digit)
    window = np.s_[row : row + side, column : column + side]
    rest[window] = cell.digit[window]
    return replace(cell, digit=rest)


def shuffle_strokes(rng: np.random.Generator, cell: Cell) -> Cell:
    """Return the cell with its digit cut into 2x2 source pixels and shuffled: the operator that only evaluation sees.

    All the ink stays, so a model that learnt to abstain where ink is missing, instead of where no digit can be read, is
    found out.
    """
    count = SOURCE // TILE
    tiles = cell.digit.reshape(count, TILE, count, TILE).swapaxes(1, 2).reshape(-1, TILE, TILE)
    mixed = rng.permutation(tiles).reshape(count, count, TILE, TILE).swapaxes(1, 2)
    return replace(cell, digit=np.ascontiguousarray(mixed.reshape(SOURCE, SOURCE)))


def scatter_pixels(rng: np.random.Generator, cell: Cell) -> Cell:
    """Return the cell with its digit's source pixels permuted: all the ink stays, and no stroke of it."""
    mixed = rng.permutation(cell.digit.reshape(-1))
    return replace(cell, digit=np.ascontiguousarray(mixed.reshape(SOURCE, SOURCE)))


def average_digit(cell: Cell) -> Cell:
    """Return the cell with a patch of one grey in its digit's place: its mean, rounded down."""
    return replace(cell, digit=np.full_like(cell.digit, int(cell.digit.sum(dtype=np.int64)) // cell.digit.size))


def compose(cells: Sequence[Cell], shown: Collection[int]) -> NDArray[np.uint8]:
    """Return the canvas of four cells in reading order, black where a cell is not shown; shape (64, 64)."""
    canvas = np.zeros((CANVAS, CANVAS), dtype=np.uint8)
    for place in shown:
        cell = cells[place]
        row, column = divmod(place, GRID)
        area = canvas[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
        area[:] = cell.ground
        _draw(area, cell.digit * cell.kept, top=cell.top, left=cell.left)
    return canvas


def _draw(area: NDArray[np.uint8], ink: NDArray[np.uint8], *, top: int, left: int) -> None:
    """Lay scaled ink over an area; where both are bright the brighter one shows."""
    scaled = np.kron(ink * np.uint8(GREY), np.ones((SCALE, SCALE), dtype=np.uint8))
    target = area[top : top + scaled.shape[0], left : left + scaled.shape[1]]
    np.maximum(target, scaled, out=target)
