"""Boxes and masks as rows of many forms write them. What they mean in pixels is `evidence_regions`' matter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from explicit_learning.data.build.source import BoxFormat, RowFault, SourceBox, SourceImage
from explicit_learning.errors import found_text

if TYPE_CHECKING:
    from explicit_learning.data.build.readers.image_names import ImageNames

__all__ = ["MAX_BOXES", "read_boxes", "read_masks"]

MAX_BOXES = 4096  # of a row
_NUMBERS = 4
_CORNERS = ("x0", "y0", "x1", "y1")
_CORNER_FORMS = frozenset({BoxFormat.XYXY, BoxFormat.NORMALISED, BoxFormat.THOUSANDTHS})


def read_boxes(
    value: Any,  # noqa: ANN401 - what the source holds
    *,
    place: str,
    images: int,
    form: BoxFormat,
) -> tuple[tuple[SourceBox, ...], list[RowFault]]:
    """Return the boxes of a row, and what is wrong with them.

    Args:
        value: Four numbers; or a list of boxes, each four numbers or an object with ``x0``, ``y0``, ``x1``, ``y1`` and,
            in a row of several images, ``image_index``; or ``None``.
        place: Their field, for faults.
        images: How many images the row has.
        form: What four numbers mean.
    """
    if value is None:
        return (), []
    if not isinstance(value, (list, dict)):
        return (), [RowFault(field=place, found=found_text(value), expected="four numbers, or a list of boxes")]
    is_one = isinstance(value, dict) or (bool(value) and not isinstance(value[0], (list, dict)))
    values = [value] if is_one else value
    if len(values) > MAX_BOXES:
        return (), [RowFault(field=place, found=f"{len(values):,} boxes", expected=f"at most {MAX_BOXES:,}")]
    found = [
        _box(item, place if is_one else f"{place}/{position}", images, form) for position, item in enumerate(values)
    ]
    boxes = tuple(one for one in found if isinstance(one, SourceBox))
    return boxes, [one for one in found if isinstance(one, RowFault)]


def _box(item: Any, place: str, images: int, form: BoxFormat) -> SourceBox | RowFault:  # noqa: ANN401 - as above
    index: Any = 0 if images == 1 else None
    numbers = item
    if isinstance(item, dict):
        index = item.get("image_index", index)
        numbers = [item.get(name) for name in _CORNERS]
        if form not in _CORNER_FORMS:
            expected = f"four numbers, as {form.value} boxes are written"
            return RowFault(field=place, found="an object with the names of corners", expected=expected)
    if not isinstance(numbers, list) or len(numbers) != _NUMBERS or not all(map(_is_number, numbers)):
        return RowFault(field=place, found=found_text(item), expected="four finite numbers")
    if fault := _index_fault(index, place, images):
        return fault
    x0, y0, x1, y1 = map(float, numbers)
    return SourceBox(image_index=index, values=(x0, y0, x1, y1), form=form)


def _is_number(value: Any) -> bool:  # noqa: ANN401 - as above
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= 2**53 and math.isfinite(value)


def _index_fault(index: Any, place: str, images: int) -> RowFault | None:  # noqa: ANN401 - as above
    if index is None:
        found = f"evidence without image_index in a row of {images} images"
        return RowFault(field=place, found=found, expected="an object with image_index")
    if type(index) is not int or not 0 <= index < images:
        expected = "0" if images == 1 else f"0 to {images - 1}"
        return RowFault(field=f"{place}/image_index", found=found_text(index), expected=expected)
    return None


def read_masks(
    value: Any,  # noqa: ANN401 - what the source holds
    *,
    place: str,
    count: int,
    images: ImageNames,
) -> tuple[tuple[tuple[int, SourceImage], ...], list[RowFault]]:
    """Return (image index, mask) of a row's masks, and what is wrong with them.

    Args:
        value: A mask or a list of masks, each named like an image; in a row of several images an object with
            ``image_index`` and ``path``; or ``None``.
        place: Their field, for faults.
        count: How many images the row has.
        images: Finds the masks.
    """
    values = value if isinstance(value, list) else [] if value is None else [value]
    masks: list[tuple[int, SourceImage]] = []
    faults: list[RowFault] = []
    if len(values) > count:
        expected = f"one mask an image: at most {count}"
        return (), [RowFault(field=place, found=f"{len(values):,} masks", expected=expected)]
    for position, item in enumerate(values):
        at = f"{place}/{position}" if isinstance(value, list) else place
        index = 0 if count == 1 else None
        if isinstance(item, dict):
            index = item.get("image_index", index)
        fault = _index_fault(index, at, count)
        mask = images.find(item, at)
        if fault is not None or isinstance(mask, RowFault):
            faults += [one for one in (fault, mask) if isinstance(one, RowFault)]
        elif index is None or index in {other for other, _ in masks}:
            faults.append(RowFault(field=at, found=f"a second mask for image {index}", expected="one mask an image"))
        else:
            masks.append((index, mask))
    return tuple(masks), faults
