"""Boxes of four conventions and masks as regions of pixels, and what is refused with the option that would help."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from explicit_learning.data.build.evidence_regions import EvidenceRegions, regions_of
from explicit_learning.data.build.source import BoxFormat, RowFault, SourceBox, SourceImage, SourceRow
from explicit_learning.data.evidence import marked_pixels
from explicit_learning.data.rows import EvidenceBox

NUMBERS = st.floats(-2000, 2000) | st.integers(-10, 1100).map(float) | st.floats(0, 1)


def row(*boxes: tuple[Any, ...], form: str = "xyxy", masks: int = 0, images: int = 1) -> SourceRow:
    pictures = tuple(SourceImage(name=f"{index}.png", data=b"x") for index in range(images))
    return SourceRow(
        where="f:1",
        number=0,
        item_id=None,
        images=pictures,
        question="q",
        answer="a",
        boxes=tuple(
            SourceBox(image_index=box[4] if len(box) > 4 else 0, values=box[:4], form=BoxFormat(form)) for box in boxes
        ),
        masks=tuple((index, SourceImage(name=f"m{index}.png", data=b"x")) for index in range(masks)),
    )


def regions(*args: Any, **more: Any) -> EvidenceRegions:
    found = regions_of(*args, **more)
    assert isinstance(found, EvidenceRegions), found
    return found


def faults(*args: Any, **more: Any) -> tuple[RowFault, ...]:
    found = regions_of(*args, **more)
    assert isinstance(found, tuple), found
    return found


@pytest.mark.parametrize(
    ("form", "values", "size", "expected"),
    [
        ("xyxy", (10, 20, 30, 50), (100, 80), (10, 20, 30, 50)),
        ("xyxy", (10.9, 20.1, 30.1, 50.0), (100, 80), (10, 20, 31, 50)),  # a touched pixel is evidence
        ("xyxy", (-0.4, 0, 100.6, 50), (100, 80), (0, 0, 100, 50)),  # rounding of tools
        ("xywh", (10, 20, 30, 50), (100, 80), (10, 20, 40, 70)),
        ("xywh", (10.5, 20, 0.25, 0.25), (100, 80), (10, 20, 11, 21)),
        ("normalised", (0.1, 0.2, 0.5, 1), (30, 10), (3, 2, 15, 10)),  # 0.1 * 30 is 3.0000000000000004 in floats
        ("thousandths", (100, 200, 500, 1000), (30, 10), (3, 2, 15, 10)),
        ("thousandths", (1, 1, 2, 2), (2000, 2000), (2, 2, 4, 4)),
    ],
)
def test_a_box_in_each_convention(
    form: str, values: tuple[float, ...], size: tuple[int, int], expected: tuple[int, ...]
) -> None:
    found = regions(row(values, form=form), [size])
    x0, y0, x1, y1 = expected
    assert found.boxes == ((EvidenceBox(image_index=0, x0=x0, y0=y0, x1=x1, y1=y1),),)
    [region] = found.regions
    assert region is not None
    assert region.shape == (size[1], size[0])
    assert region.sum() == (x1 - x0) * (y1 - y0)
    assert region[y0:y1, x0:x1].all()


@pytest.mark.parametrize(
    ("form", "values", "found", "option"),
    [
        ("xyxy", (0.2, 0.2, 0.5, 0.5), "no number is above 1", "normalised"),
        ("xywh", (0.2, 0.2, 0.5, 0.5), "no number is above 1", "normalised"),
        ("xyxy", (60, 50, 30, 20), "corners in reversed order", "xywh"),
        ("xyxy", (90, 70, 60, 20), "corners in reversed order", None),
        ("xyxy", (10, 10, 10, 30), "a box of no area", "xywh"),
        ("xyxy", (100, 200, 500, 700), "a box that leaves the image", "thousandths"),
        ("xyxy", (10, 20, 102, 30), "a box that leaves the image", "thousandths"),
        ("xyxy", (-5, 0, 5, 5), "a box that leaves the image", None),
        ("xyxy", (5000, 5000, 6000, 6000), "a box that leaves the image", None),
        ("xywh", (60, 50, 70, 60), "a box that leaves the image", "xyxy"),
        ("xywh", (10, 10, 0, 5), "a box of no area", None),
        ("normalised", (10, 20, 30, 50), "a box that leaves the image", "xyxy"),
        ("normalised", (100, 200, 500, 700), "a box that leaves the image", "thousandths"),
        ("normalised", (0.5, 0.2, 0.1, 0.4), "corners in reversed order", None),
        ("thousandths", (0.2, 0.2, 0.5, 0.5), "no number is above 1", "normalised"),
        ("thousandths", (1500, 200, 1800, 700), "a box that leaves the image", None),
    ],
)
def test_a_box_that_does_not_fit_names_the_convention_in_which_it_would(
    form: str, values: tuple[float, ...], found: str, option: str | None
) -> None:
    [fault] = faults(row(values, form=form), [(100, 80)])
    assert fault.field == "boxes/0"
    assert fault.found.endswith(f"as {form} in 100 by 80 pixels: {found}")
    if option is None:
        assert "--boxes" not in fault.expected
    else:
        assert fault.expected.endswith(f"if it is {option}, say so with --boxes {option}")


def test_evidence_that_covers_all_of_a_rows_only_image_is_refused_and_half_of_it_is_told() -> None:
    [fault] = faults(row((0, 0, 100, 50), (0, 40, 100, 80)), [(100, 80)])
    assert (fault.field, fault.found) == ("boxes", "evidence that covers the whole image")
    text = "the evidence covers 75% of image 0: no CONTROL region of equal area fits beside it"
    assert regions(row((0, 0, 100, 60)), [(100, 80)]).told == (text,)
    assert regions(row((0, 0, 100, 40)), [(100, 80)]).told == ()
    whole = regions(row((0, 0, 100, 80, 1), images=2), [(10, 10), (100, 80)])
    assert whole.told == ("the evidence covers 100% of image 1: no CONTROL region of equal area fits beside it",)
    assert whole.regions[0] is None


def test_boxes_belong_to_their_images_and_overlap_once() -> None:
    found = regions(row((0, 0, 4, 4), (2, 2, 6, 6), (1, 1, 3, 3, 1), images=2), [(20, 10), (8, 8)])
    assert [len(boxes) for boxes in found.boxes] == [2, 1]
    assert [int(region.sum()) for region in found.regions if region is not None] == [28, 4]


def test_a_row_without_evidence_has_none() -> None:
    assert regions(row(), [(5, 5)]) == EvidenceRegions(boxes=((),), regions=(None,), told=())


def test_a_masks_pixels_that_are_not_0_are_evidence() -> None:
    mask = Image.new("LA", (6, 4), (0, 255))  # opaque everywhere, which does not count
    mask.putpixel((2, 1), (7, 0))
    pixels = marked_pixels(mask)
    found = regions(row(masks=1), [(6, 4)], [pixels])
    [region] = found.regions
    assert region is not None
    assert np.argwhere(region).tolist() == [[1, 2]]
    assert found.boxes == ((),)


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((4, 5), "m0.png: 5 by 4 pixels"),
        ((6, 4), "m0.png: 4 by 6 pixels, which is the image before EXIF rotation"),
    ],
)
def test_a_mask_of_another_size_is_refused(shape: tuple[int, int], found: str) -> None:
    [fault] = faults(row(masks=1), [(6, 4)], [np.ones(shape, bool)])
    assert (fault.field, fault.found, fault.expected) == ("masks/0", found, "6 by 4, as the image is shown")


def test_a_mask_that_marks_nothing_or_everything_is_refused() -> None:
    [fault] = faults(row(masks=1), [(6, 4)], [np.zeros((4, 6), bool)])
    assert fault.found == "m0.png: all pixels are 0"
    [fault] = faults(row(masks=1), [(6, 4)], [np.ones((4, 6), bool)])
    assert (fault.field, fault.found) == ("masks", "evidence that covers the whole image")


@given(
    st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.sampled_from(list(BoxFormat)),
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
)
def test_any_numbers_are_a_box_inside_the_image_or_one_fault(
    values: tuple[float, float, float, float], form: BoxFormat, size: tuple[int, int]
) -> None:
    found = regions_of(row(values, form=form), [size])
    if isinstance(found, tuple):
        assert len(found) == 1
        return
    [[box]], [region] = found.boxes, found.regions
    assert 0 <= box.x0 < box.x1 <= size[0]
    assert 0 <= box.y0 < box.y1 <= size[1]
    assert all(type(value) is int for value in (box.x0, box.y0, box.x1, box.y1))
    assert region is not None
    assert region.sum() == (box.x1 - box.x0) * (box.y1 - box.y0)
