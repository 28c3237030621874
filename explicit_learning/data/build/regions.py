"""Regions of an image: parts, dilation, and where a region of the same shape fits beside the evidence.

A region is a boolean array of the image's shape, (height, width).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from explicit_learning.data.build.opencv import configured_cv2
from explicit_learning.data.keys import keyed_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Region = NDArray[np.bool_]

__all__ = ["Box", "bounding_box", "boxed", "boxes_around", "components", "control_regions", "dilated"]

_DOMAIN = "explicit-learning/control-region/1"
_CONNECTIVITY = 8


@dataclass(frozen=True, slots=True)
class Box:
    """A half-open box of pixels: top ≤ y < bottom, left ≤ x < right."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def height(self) -> int:
        """Rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Columns."""
        return self.right - self.left

    def of(self, image: NDArray[Any]) -> NDArray[Any]:
        """Return this part of an image, as a view."""
        return image[self.top : self.bottom, self.left : self.right]

    def grown(self, down: int, across: int, shape: tuple[int, ...]) -> Box:
        """Return the box with so many more rows and columns on each side, as far as an image of a shape has them."""
        return Box(
            max(self.top - down, 0),
            max(self.left - across, 0),
            min(self.bottom + down, shape[0]),
            min(self.right + across, shape[1]),
        )

    def moved(self, down: int, across: int) -> Box:
        """Return the box so many rows and columns further."""
        return Box(self.top + down, self.left + across, self.bottom + down, self.right + across)

    def inside(self, outer: Box) -> Box:
        """Return the box in the coordinates of one that holds it."""
        return self.moved(-outer.top, -outer.left)


def bounding_box(region: Region) -> Box:
    """Return the smallest box that holds a region.

    Raises:
        ValueError: If the region is empty.
    """
    rows, columns = np.flatnonzero(region.any(axis=1)), np.flatnonzero(region.any(axis=0))
    if not len(rows):
        raise ValueError("the region is empty")
    return Box(int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1)


def dilated(region: Region, radius: int) -> Region:
    """Return the pixels that are at most ``radius`` rows and columns away from a region."""
    cv2 = configured_cv2()
    square = np.ones((2 * radius + 1, 2 * radius + 1), dtype=np.uint8)
    grown: Region = cv2.dilate(region.astype(np.uint8), square).view(np.bool_)
    return grown


def components(region: Region) -> Iterator[tuple[Box, Region]]:
    """Yield the connected parts of a region: the box of each, and which of the box's pixels belong to it.

    Pixels that touch at a corner are connected.
    """
    if not region.any():
        return
    around = bounding_box(region)
    inner = around.of(region)
    if inner.all():  # a single box, as most evidence is
        yield around, inner
        return
    cv2 = configured_cv2()
    count, labels, stats, _ = cv2.connectedComponentsWithStats(inner.astype(np.uint8), connectivity=_CONNECTIVITY)
    for label in range(1, count):
        left, top, width, height = (int(value) for value in stats[label, : cv2.CC_STAT_AREA])
        box = Box(top, left, top + height, left + width)
        yield box.moved(around.top, around.left), box.of(labels) == label


def boxes_around(region: Region) -> list[Box]:
    """Return the boxes around a region's connected parts; where boxes touch, the box around them, until none do."""
    parts = list(components(region))
    while not all(inside.all() for _, inside in parts):
        parts = list(components(_marked([box for box, _ in parts], region.shape)))
    return [box for box, _ in parts]


def boxed(region: Region) -> Region:
    """Return the pixels in `boxes_around` a region; shape (height, width)."""
    return _marked(boxes_around(region), region.shape)


def control_regions(evidence: Region, *, reach: int, key: bytes) -> Iterator[Region]:
    """Yield regions for CONTROL, of the shape and area of the boxes around evidence, in an order drawn by the key.

    All boxes move together, by one offset out of all that keep them inside the image and more than ``reach`` rows or
    columns away from the evidence's. Where none does, each box moves by itself, the largest first, as far off the
    evidence's and off those that have moved; only one such region is drawn. Without room, none comes.

    Args:
        evidence: The evidence; not empty.
        reach: How many pixels lie between the two at least.
        key: What the order is drawn from.
    """
    boxes = boxes_around(evidence)
    forbidden = dilated(_marked(boxes, evidence.shape), reach)
    fits = False
    for down, across in _drawn_offsets(forbidden, boxes, key):
        fits = True
        yield _marked([box.moved(down, across) for box in boxes], evidence.shape)
    if not fits and len(boxes) > 1 and (scattered := _scattered(forbidden, boxes, reach=reach, key=key)):
        yield _marked(scattered, evidence.shape)


def _scattered(forbidden: Region, boxes: list[Box], *, reach: int, key: bytes) -> list[Box] | None:
    """Return boxes moved one by one; ``None`` where one finds no room."""
    taken, moved = forbidden.copy(), []
    for number, box in enumerate(sorted(boxes, key=lambda box: -box.height * box.width)):
        offset = next(_drawn_offsets(taken, [box], keyed_digest(_DOMAIN, key.hex(), f"part {number}")), None)
        if offset is None:
            return None
        moved.append(box.moved(*offset))
        moved[-1].grown(reach, reach, taken.shape).of(taken)[:] = True
    return moved


def _drawn_offsets(forbidden: Region, boxes: list[Box], key: bytes) -> Iterator[tuple[int, int]]:
    """Yield the offsets (down, across) that move boxes off what is forbidden, each once, as drawn by the key."""
    around = bounding_box(_marked(boxes, forbidden.shape))
    free = _free_places(forbidden, [box.inside(around) for box in boxes], around)
    left = np.flatnonzero(free)
    for draw in range(len(left)):
        last = len(left) - draw - 1
        chosen = int.from_bytes(keyed_digest(_DOMAIN, key.hex(), draw), "big") % (last + 1)
        top, start = divmod(int(left[chosen]), free.shape[1])
        left[chosen] = left[last]
        yield top - around.top, start - around.left


def _free_places(forbidden: Region, boxes: list[Box], around: Box) -> Region:
    """Return where the box around boxes can lie so that none of them meets anything forbidden.

    Args:
        forbidden: Shape (height, width).
        boxes: In the coordinates of the box around them.
        around: That box.

    Returns:
        For each place of its upper left pixel, shape (height - its height + 1, width - its width + 1).
    """
    height, width = forbidden.shape
    integral = np.zeros((height + 1, width + 1), dtype=np.int32)
    np.cumsum(np.cumsum(forbidden, axis=0, dtype=np.int32), axis=1, out=integral[1:, 1:])
    rows, columns = height - around.height + 1, width - around.width + 1
    free = np.ones((rows, columns), dtype=np.bool_)
    for box in boxes:
        above, below = (integral[edge : edge + rows] for edge in (box.top, box.bottom))
        left, right = (np.s_[:, edge : edge + columns] for edge in (box.left, box.right))
        free &= below[right] - below[left] == above[right] - above[left]
    return free


def _marked(boxes: Iterable[Box], shape: tuple[int, ...]) -> Region:
    """Return the pixels in boxes."""
    region = np.zeros(shape, dtype=np.bool_)
    for box in boxes:
        box.of(region)[:] = True
    return region
