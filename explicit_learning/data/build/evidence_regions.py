"""Where a row's evidence lies, in whole pixels: boxes of four conventions, and masks.

Four numbers do not say what they mean. A box that was read in the wrong convention removes the wrong part of a picture,
and nothing afterwards would notice: so a box that does not fit, and would fit in another convention, is refused with
the option that names that one. Edges between pixels are rounded outwards: a pixel that a box touches is evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.build.source import BoxFormat, RowFault, SourceBox
from explicit_learning.data.rows import EvidenceBox

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from explicit_learning.data.build.source import SourceRow

    Region = NDArray[np.bool_]

__all__ = ["EvidenceRegions", "regions_of"]

# Annotation tools round: an edge less than this many pixels outside the image is taken for the image's edge.
ROUNDING = 1.0
# A share of the image above which no region of equal area lies beside the evidence.
HALF = 0.5
THOUSAND = 1000.0
_DECIMALS = 6  # of a pixel, to which scaled edges are rounded before they are rounded outwards

Corners = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRegions:
    """The evidence of a row.

    Attributes:
        boxes: For each image its boxes, half-open, in pixels after EXIF rotation.
        regions: For each image bool[height, width], the pixels that are evidence; ``None`` where none are.
        told: What a person should know of it, in words; the row can be used.
    """

    boxes: tuple[tuple[EvidenceBox, ...], ...]
    regions: tuple[Region | None, ...]
    told: tuple[str, ...]


def regions_of(
    row: SourceRow, sizes: Sequence[tuple[int, int]], masks: Sequence[Region] = ()
) -> EvidenceRegions | tuple[RowFault, ...]:
    """Return where a row's evidence lies, or everything that is wrong with it.

    Args:
        row: The row.
        sizes: (width, height) of each of its images after EXIF rotation, in pixels.
        masks: bool[height, width] of each of its masks, in the row's order (`evidence.marked_pixels`).
    """
    import numpy as np

    faults: list[RowFault] = []
    boxes: list[list[EvidenceBox]] = [[] for _ in sizes]
    regions: list[Region | None] = [None] * len(sizes)
    for position, box in enumerate(row.boxes):
        index = box.image_index
        found = _pixels(box, sizes[index], f"boxes/{position}")
        if isinstance(found, RowFault):
            faults.append(found)
            continue
        boxes[index].append(found)
        width, height = sizes[index]
        region = regions[index]
        if region is None:
            region = regions[index] = np.zeros((height, width), np.bool_)
        region[found.y0 : found.y1, found.x0 : found.x1] = True
    for position, ((index, mask), pixels) in enumerate(zip(row.masks, masks, strict=True)):
        fault = _mask_fault(pixels, sizes[index], f"masks/{position}", mask.name)
        if fault is not None:
            faults.append(fault)
        else:
            regions[index] = pixels
    told = []
    for index, region in enumerate(regions):
        share = 0.0 if region is None else float(region.mean())
        if share == 1 and len(sizes) == 1:
            expected = "a part of it, or a row without evidence"
            field = "boxes" if row.boxes else "masks"
            faults.append(RowFault(field=field, found="evidence that covers the whole image", expected=expected))
        elif share > HALF:
            told.append(
                f"the evidence covers {share:.0%} of image {index}: no CONTROL region of equal area fits beside it"
            )
    if faults:
        return tuple(faults)
    return EvidenceRegions(boxes=tuple(map(tuple, boxes)), regions=tuple(regions), told=tuple(told))


def _mask_fault(pixels: Region, size: tuple[int, int], field: str, name: str) -> RowFault | None:
    width, height = size
    if pixels.shape != (height, width):
        found = f"{name}: {pixels.shape[1]} by {pixels.shape[0]} pixels"
        turned = ", which is the image before EXIF rotation" if pixels.shape == (width, height) else ""
        return RowFault(field=field, found=found + turned, expected=f"{width} by {height}, as the image is shown")
    if not pixels.any():
        return RowFault(field=field, found=f"{name}: all pixels are 0", expected="pixels that are not 0, as evidence")
    return None


# --- boxes --------------------------------------------------------------------------------------------------------


def _pixels(box: SourceBox, size: tuple[int, int], field: str) -> EvidenceBox | RowFault:
    """Return a box in whole pixels, or why it does not fit."""
    shown = f"{', '.join(f'{value:g}' for value in box.values)} as {box.form.value} in {size[0]} by {size[1]} pixels"
    wrong = _why_not(box.values, box.form, size)
    if wrong is not None:
        found, expected = wrong
        others = list(_fitting(box, size))
        if others:
            expected += f"; if it is {others[0].value}, say so with --boxes {others[0].value}"
        return RowFault(field=field, found=f"{shown}: {found}", expected=expected)
    x0, y0, x1, y1 = _corners(box.values, box.form, size)
    width, height = size
    return EvidenceBox(
        image_index=box.image_index,
        x0=max(math.floor(x0), 0),
        y0=max(math.floor(y0), 0),
        x1=min(math.ceil(x1), width),
        y1=min(math.ceil(y1), height),
    )


def _corners(values: Corners, form: BoxFormat, size: tuple[int, int]) -> Corners:
    """Return (left, top, right, bottom) in pixels."""
    a, b, c, d = values
    if form is BoxFormat.XYWH:
        c, d = a + c, b + d
    elif form is not BoxFormat.XYXY:
        unit = 1.0 if form is BoxFormat.NORMALISED else THOUSAND
        width, height = size[0] / unit, size[1] / unit
        a, b, c, d = a * width, b * height, c * width, d * height
    # 0.1 of 30 pixels is 3, and not the 3.0000000000000004 that rounding outwards would make 4.
    return round(a, _DECIMALS), round(b, _DECIMALS), round(c, _DECIMALS), round(d, _DECIMALS)


def _why_not(values: Corners, form: BoxFormat, size: tuple[int, int]) -> tuple[str, str] | None:
    """Return (found, expected) of what is wrong with a box in a convention, or ``None``."""
    if form in {BoxFormat.XYXY, BoxFormat.XYWH} and all(0 <= value <= 1 for value in values) and max(size) > 1:
        return "no number is above 1", "pixels"
    if form is BoxFormat.THOUSANDTHS and all(0 <= value <= 1 for value in values):
        return "no number is above 1", "thousandths of the image's size"
    x0, y0, x1, y1 = _corners(values, form, size)
    if x0 >= x1 or y0 >= y1:
        if form is BoxFormat.XYWH:
            return "a box of no area", "a width and a height above 0"
        is_flat = x0 == x1 or y0 == y1
        found = "a box of no area" if is_flat else "corners in reversed order"
        return found, "left, top, right, bottom, with left < right and top < bottom"
    if x0 <= -ROUNDING or y0 <= -ROUNDING or x1 >= size[0] + ROUNDING or y1 >= size[1] + ROUNDING:
        return "a box that leaves the image", "a box inside the image as it is shown, after EXIF rotation"
    return None


def _fitting(box: SourceBox, size: tuple[int, int]) -> Iterator[BoxFormat]:
    """Yield the other conventions in which a box would fit, the likeliest first."""
    shares = all(0 <= value <= 1 for value in box.values)
    order = [BoxFormat.NORMALISED] if shares else [BoxFormat.XYXY, BoxFormat.XYWH, BoxFormat.THOUSANDTHS]
    for form in order:
        if form is not box.form and min(box.values) >= 0 and _why_not(box.values, form, size) is None:
            yield form
