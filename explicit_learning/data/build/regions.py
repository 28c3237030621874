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
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Region = NDArray[np.bool_]

__all__ = ["Box", "bounding_box", "boxed", "components", "control_regions", "dilated"]

_DOMAIN = "explicit-learning/control-region/1"
_CONNECTIVITY = 8
# Rectangles up to which places are counted by an integral image. A shape of more is counted by a Fourier transform.
_MAX_RECTANGLES = 32


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

    def inside(self, outer: Box) -> Box:
        """Return the box in the coordinates of one that holds it."""
        return Box(self.top - outer.top, self.left - outer.left, self.bottom - outer.top, self.right - outer.left)


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
        whole = Box(box.top + around.top, box.left + around.left, box.bottom + around.top, box.right + around.left)
        yield whole, box.of(labels) == label


def boxed(region: Region) -> Region:
    """Return the boxes around a region's connected parts; where boxes touch, the box around them, until none do."""
    result = region
    while True:
        parts = list(components(result))
        if all(inside.all() for _, inside in parts):
            return result
        result = np.zeros_like(region)
        for box, _ in parts:
            box.of(result)[:] = True


def control_regions(evidence: Region, *, reach: int, key: bytes) -> Iterator[Region]:
    """Yield places for CONTROL: regions of the evidence's shape and area that lie off it, in an order drawn by the key.

    All parts of the evidence move together, by one offset out of all that keep the shape inside the image and more
    than ``reach`` rows or columns away from the evidence. Where none does, each part moves by itself, the largest
    first, as far off the evidence and off the parts that have moved; only one such region is drawn. Without room, none
    comes.

    Args:
        evidence: The evidence; not empty.
        reach: How many pixels lie between the two at least.
        key: What the order is drawn from.
    """
    forbidden = dilated(evidence, reach)
    box = bounding_box(evidence)
    shape = box.of(evidence)
    places = np.flatnonzero(_free_places(forbidden, shape))
    if len(places):
        across = evidence.shape[1] - box.width + 1
        for place in _drawn(places, key):
            yield _put(np.zeros_like(evidence), shape, *divmod(place, across))
    elif (scattered := _scattered(evidence, forbidden, reach=reach, key=key)) is not None:
        yield scattered


def _scattered(evidence: Region, forbidden: Region, *, reach: int, key: bytes) -> Region | None:
    """Return the evidence's parts moved one by one; ``None`` where one finds no room."""
    parts = sorted(components(evidence), key=lambda part: -int(part[1].sum()))
    if len(parts) == 1:
        return None
    taken, moved = forbidden.copy(), np.zeros_like(evidence)
    for number, (box, shape) in enumerate(parts):
        places = np.flatnonzero(_free_places(taken, shape))
        if not len(places):
            return None
        place = next(_drawn(places, keyed_digest(_DOMAIN, key.hex(), f"part {number}")))
        part = _put(np.zeros_like(evidence), shape, *divmod(place, evidence.shape[1] - box.width + 1))
        moved |= part
        taken |= dilated(part, reach)
    return moved


def _drawn(places: NDArray[np.intp], key: bytes) -> Iterator[int]:
    """Yield places, each once, in an order drawn by the key."""
    left = places.copy()
    for draw in range(len(left)):
        chosen = int.from_bytes(keyed_digest(_DOMAIN, key.hex(), draw), "big") % (len(left) - draw)
        place = int(left[chosen])
        left[chosen] = left[len(left) - draw - 1]
        yield place


def _put(target: Region, shape: Region, top: int, left: int) -> Region:
    """Add a shape to a region, in place."""
    target[top : top + shape.shape[0], left : left + shape.shape[1]] |= shape
    return target


def _free_places(forbidden: Region, shape: Region) -> Region:
    """Return at which places a shape meets nothing forbidden; shape (rows left over + 1, columns left over + 1)."""
    rows, columns = (outer - inner + 1 for outer, inner in zip(forbidden.shape, shape.shape, strict=True))
    rectangles = _rectangles(shape, at_most=_MAX_RECTANGLES)
    if rectangles is None:
        return _free_by_transform(forbidden, shape)
    integral = np.zeros((forbidden.shape[0] + 1, forbidden.shape[1] + 1), dtype=np.int32)
    np.cumsum(np.cumsum(forbidden, axis=0, dtype=np.int32), axis=1, out=integral[1:, 1:])
    free = np.ones((rows, columns), dtype=np.bool_)
    for box in rectangles:
        corner = {
            (y, x): integral[y : y + rows, x : x + columns]
            for y in (box.top, box.bottom)
            for x in (box.left, box.right)
        }
        free &= (
            corner[box.bottom, box.right]
            - corner[box.top, box.right]
            - corner[box.bottom, box.left]
            + corner[box.top, box.left]
        ) == 0
    return free


def _rectangles(shape: Region, *, at_most: int) -> list[Box] | None:
    """Return rectangles that make up a shape, runs of rows alike taken together; ``None`` if they are more."""
    changes = np.flatnonzero((shape[1:] != shape[:-1]).any(axis=1)) + 1
    if len(changes) >= at_most:
        return None
    tops = [0, *changes.tolist()]
    found = []
    for top, bottom in zip(tops, [*tops[1:], len(shape)], strict=True):
        edges = np.flatnonzero(np.diff(shape[top].astype(np.int8), prepend=0, append=0))
        found += [Box(top, int(left), bottom, int(right)) for left, right in edges.reshape(-1, 2)]
    return found if len(found) <= at_most else None


def _free_by_transform(forbidden: Region, shape: Region) -> Region:
    """Return what `_free_places` does, for any shape.

    How many forbidden pixels a shape meets is a whole number, and the transform's error is far below a half: only
    whether it is 0 matters, so the rounding of a processor or a library cannot change the result.
    """
    met = np.fft.irfft2(np.fft.rfft2(forbidden) * np.conj(np.fft.rfft2(shape, forbidden.shape)), forbidden.shape)
    rows, columns = (outer - inner + 1 for outer, inner in zip(forbidden.shape, shape.shape, strict=True))
    free: Region = met[:rows, :columns] < 0.5  # noqa: PLR2004 - between 0 and 1
    return free
