"""Operators that remove evidence from an image, and what each leaves behind.

A removal changes a hole: the boxes around the region's connected parts, dilated by `DILATION`. Boxes, because a hole
of the region's own outline would show the outline: of what was a cat, one sees a cat. Two properties hold for each
operator. The pixels outside the hole stay as they are, bit for bit. And what is put into the hole depends on the pixels
outside alone: two images that differ in nothing but the hole give the same result. So the evidence is gone by
construction, its mean colour included, and the right answer is to abstain. That is why the blur is one of the
surroundings, not of the evidence, and why the hole has a hard border: a feathered one would mix evidence in. (What a
box's own place and size give away, such as the height of a bar that it fits tightly, stays: draw such boxes larger.)

The operators differ in what they leave:

* ``fill`` puts one flat colour there, the mean of a ring around: a patch with an edge.
* ``blur`` puts the surroundings there, out of focus: a patch of haze, without any detail.
* ``inpaint-ns`` and ``inpaint-telea`` carry edges and colours on from the border: no patch, but streaks. Telea's
  colours drift on their way inwards, by rounding: by up to 13 levels of 255 on plain paper. So a place that has nothing
  to remove looks the same without it under the other operators, and not quite under this one.

By default training sees ``blur`` and ``fill``, and evaluation adds ``inpaint-ns``. A model that learned to abstain
where it finds a patch is found out: evaluation has none. It is this way round because training needs evidence that is
plainly gone, and evaluation the case that looks most like a picture that never had the evidence. The two ways to
inpaint leave the same kind of trace, so they are a choice for one side, not for both.

Nothing here is random. The cost grows with the hole, not with the image, and stops growing where a hole is larger than
`WORKING_SIDE`: a hole's inside has no detail to lose, so large ones are filled on a coarser grid.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from explicit_learning.data.build.opencv import configured_cv2
from explicit_learning.data.build.options import Operator
from explicit_learning.data.build.regions import boxed, components, dilated

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from explicit_learning.data.build.regions import Box

    Pixels = NDArray[np.uint8]
    Region = NDArray[np.bool_]

__all__ = ["DILATION", "OPERATORS_VERSION", "hole_of", "operator_parameters", "remove"]

# Goes up with every change that gives other bytes.
OPERATORS_VERSION = "1"

# Pixels around a region that are removed with it: where an edge was smoothed, they still show it.
DILATION = 2
# Radius of the neighbourhood that inpainting takes a pixel from. A larger one smears more and costs its square.
INPAINT_RADIUS = 3
# Pixels around a hole that inpainting needs: it reads twice the radius far.
INPAINT_MARGIN = 2 * INPAINT_RADIUS + 2
# A hole with a longer side is inpainted on a grid of as many cells at most. Unit: pixels.
WORKING_SIDE = 256
# The blur's grid: cells along each side of a hole, and its standard deviation in cells, a quarter of a side. Its kernel
# reaches as many cells as a hole has, so that it finds the surroundings from a corner, too.
BLUR_CELLS = 8
BLUR_SIGMA = 2
# Width of the ring whose mean colour fills a hole. Unit: pixels.
FILL_RING = 8

_CHANNELS = 3
# Bounds the memory for the sums over an image's cells.
_PIXELS_AT_ONCE = 1 << 20
# Colours on the blur's grid have 16 bits: 257 times the usual ones.
_FINE = 257


def operator_parameters() -> dict[str, Any]:
    """Return all that decides what the operators do, for a dataset's manifest."""
    return {
        "version": OPERATORS_VERSION,
        "library": f"opencv-python-headless {version('opencv-python-headless')}",
        "dilation_pixels": DILATION,
        "inpaint_radius_pixels": INPAINT_RADIUS,
        "inpaint_working_side_pixels": WORKING_SIDE,
        "blur_cells_per_side": BLUR_CELLS,
        "blur_sigma_cells": BLUR_SIGMA,
        "fill_ring_pixels": FILL_RING,
    }


def hole_of(region: Region) -> Region:
    """Return the pixels that removing a region changes: the boxes around its parts, dilated; shape (height, width)."""
    return dilated(boxed(region), DILATION)


def remove(pixels: Pixels, region: Region, operator: Operator) -> Pixels:
    """Return the image with a region removed; it may equal the image, where there was nothing but plain paper.

    Args:
        pixels: RGB; shape (height, width, 3).
        region: What to remove; shape (height, width).
        operator: How.

    Raises:
        ValueError: If shapes or types do not fit, the region is empty, or its hole leaves no pixel of the image.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != _CHANNELS or pixels.shape[2] != _CHANNELS:
        raise ValueError(f"pixels of shape {pixels.shape} and type {pixels.dtype}, expected (height, width, 3), uint8")
    if region.dtype != np.bool_ or region.shape != pixels.shape[:2]:
        raise ValueError(f"a region of shape {region.shape} and type {region.dtype}, expected {pixels.shape[:2]}, bool")
    if not region.any():
        raise ValueError("the region is empty")
    hole = hole_of(region)
    if hole.all():
        raise ValueError("the region's hole covers the image: nothing is around it")
    result = pixels.copy()
    for box, inside in components(hole):
        if operator is Operator.FILL:
            painted = _filled(pixels, hole, box, inside)
        elif operator is Operator.BLUR:
            painted = _blurred(pixels, hole, box)
        else:
            painted = _inpainted(pixels, hole, box, operator)
        np.copyto(box.of(result), painted, where=inside[..., None])
    return result


def _inpainted(pixels: Pixels, hole: Region, box: Box, operator: Operator) -> Pixels:
    """Return a box in which OpenCV has inpainted the hole."""
    cv2 = configured_cv2()
    flag = cv2.INPAINT_TELEA if operator is Operator.INPAINT_TELEA else cv2.INPAINT_NS
    step = -(-max(box.height, box.width) // WORKING_SIDE)
    margin = step * INPAINT_MARGIN
    window = box.grown(margin, margin, hole.shape)
    sums, counts = _cell_sums(window.of(pixels), ~window.of(hole), step, step)
    known = np.maximum(counts, 1)
    coarse = ((2 * sums + known) // (2 * known)).astype(np.uint8)
    unknown = (counts[..., 0] == 0).astype(np.uint8)
    # In an image of one row or column, OpenCV reads past the end: what it finds there differs from call to call.
    rows, columns = unknown.shape
    more = ((0, int(rows == 1)), (0, int(columns == 1)))
    padded, mask = np.pad(coarse, (*more, (0, 0)), mode="edge"), np.pad(unknown, more, mode="edge")
    painted = cv2.inpaint(padded, mask, INPAINT_RADIUS, flag)[:rows, :columns]
    return box.inside(window).of(_enlarged(painted, step, step))


def _blurred(pixels: Pixels, hole: Region, box: Box) -> Pixels:
    """Return a box of the surroundings out of focus: a Gaussian mean of the known pixels, on a grid of cells."""
    cv2 = configured_cv2()
    down, across = -(-box.height // BLUR_CELLS), -(-box.width // BLUR_CELLS)
    reach = BLUR_CELLS
    window = box.grown(reach * down, reach * across, hole.shape)
    sums, counts = _cell_sums(window.of(pixels), ~window.of(hole), down, across)
    layers = np.pad(np.dstack([sums, counts]).astype(np.float64), ((reach, reach), (reach, reach), (0, 0)))
    side = 2 * reach + 1
    soft = cv2.GaussianBlur(layers, (side, side), BLUR_SIGMA)[reach:-reach, reach:-reach]
    colours, weights = soft[..., :_CHANNELS], soft[..., _CHANNELS:]
    means = np.divide(colours, weights, out=np.zeros_like(colours), where=weights > 0)
    fine = np.clip(np.floor(means * _FINE + 0.5), 0, 255 * _FINE).astype(np.uint16)
    smooth = box.inside(window).of(_enlarged(fine, down, across))
    return ((smooth.astype(np.int64) + _FINE // 2) // _FINE).astype(np.uint8)


def _filled(pixels: Pixels, hole: Region, box: Box, inside: Region) -> Pixels:
    """Return a box of one colour: the mean of the ring around a part of the hole, halves rounded up."""
    window = box.grown(FILL_RING, FILL_RING, hole.shape)
    place = np.zeros((window.height, window.width), dtype=np.bool_)
    box.inside(window).of(place)[:] = inside
    ring = window.of(pixels)[dilated(place, FILL_RING) & ~window.of(hole)].astype(np.int64)
    mean = (2 * ring.sum(axis=0) + len(ring)) // (2 * len(ring))
    return np.broadcast_to(mean.astype(np.uint8), (box.height, box.width, _CHANNELS))


def _cell_sums(pixels: Pixels, known: Region, down: int, across: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sums of the known pixels' colours and their number, over cells of down by across pixels.

    Cells at the right and lower border may be cut off.

    Returns:
        Shapes (rows, columns, 3) and (rows, columns, 1).
    """
    height, width = known.shape
    at_once = down * max(_PIXELS_AT_ONCE // (down * width), 1)
    strips = [np.s_[top : top + at_once] for top in range(0, height, at_once)]
    sums = np.concatenate([_strip_sums(pixels[strip], known[strip], down, across) for strip in strips])
    return sums[..., :_CHANNELS], sums[..., _CHANNELS:]


def _strip_sums(pixels: Pixels, known: Region, down: int, across: int) -> NDArray[np.int64]:
    """Return the sums and, as a fourth layer, the number of known pixels over cells; shape (rows, columns, 4)."""
    cv2 = configured_cv2()
    layers = np.dstack([np.where(known[..., None], pixels, 0), known.astype(np.uint8)])
    integral = cv2.integral(layers, sdepth=cv2.CV_64F)  # whole numbers, exact
    rows, columns = (
        np.minimum(np.arange(-(-side // step) + 1) * step, side)
        for side, step in zip(known.shape, (down, across), strict=True)
    )
    sums: NDArray[np.int64] = np.diff(np.diff(integral[np.ix_(rows, columns)], axis=0), axis=1).astype(np.int64)
    return sums


def _enlarged(cells: NDArray[Any], down: int, across: int) -> NDArray[Any]:
    """Return cells as pixels, each cell's colour in its middle and linear between them."""
    cv2 = configured_cv2()
    size = cells.shape[1] * across, cells.shape[0] * down
    pixels: NDArray[Any] = cv2.resize(cells, size, interpolation=cv2.INTER_LINEAR_EXACT)
    return pixels
