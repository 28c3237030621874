"""CONTROL's regions: the same shape and area, off the evidence, drawn among all places there are."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explicit_learning.data.build.regions import (
    Box,
    bounding_box,
    boxed,
    boxes_around,
    components,
    control_regions,
    dilated,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY = b"key"


def region(text: str) -> NDArray[np.bool_]:
    """Return the region that a drawing shows: ``#`` is in it."""
    return np.array([[character == "#" for character in row] for row in text.split()])


def drawing(marked: NDArray[np.bool_]) -> str:
    return " ".join("".join("#" if pixel else "." for pixel in row) for row in marked)


def masks() -> st.SearchStrategy[NDArray[np.bool_]]:
    """Return regions of up to 12 by 12 pixels that are not empty, most of them sparse."""
    return (
        st.tuples(st.integers(1, 12), st.integers(1, 12))
        .flatmap(
            lambda size: st.lists(
                st.tuples(st.integers(0, size[0] - 1), st.integers(0, size[1] - 1)), min_size=1, max_size=6
            ).map(lambda pixels: (size, pixels))
        )
        .map(lambda both: _of_pixels(*both))
    )


def _of_pixels(size: tuple[int, int], pixels: list[tuple[int, int]]) -> NDArray[np.bool_]:
    marked = np.zeros(size, dtype=np.bool_)
    for pixel in pixels:
        marked[pixel] = True
    return marked


def places_by_hand(evidence: NDArray[np.bool_], reach: int) -> set[str]:
    """Return every place that the boxes around evidence can move to together, found by trying all offsets."""
    height, width = evidence.shape
    rows, columns = np.nonzero(boxed(evidence))
    found = set()
    for down in range(-height, height + 1):
        for across in range(-width, width + 1):
            y, x = rows + down, columns + across
            if min(y.min(), x.min()) < 0 or y.max() >= height or x.max() >= width:
                continue
            distances = np.maximum(abs(y[:, None] - rows[None]), abs(x[:, None] - columns[None]))
            if distances.min() > reach:
                found.add(drawing(_of_pixels((height, width), list(zip(y, x, strict=True)))))
    return found


@pytest.mark.parametrize(
    ("given_region", "expected"),
    [
        ("#... .#.. ...#", "##.. ##.. ...#"),
        (".... .### .#.# .###", ".... .### .### .###"),
        # The box of the frame holds the dot; the box of the diagonal touches the dot's.
        ("##### #...# #.#.# #...# #####", "##### ##### ##### ##### #####"),
        ("#.... .#... ..#.. ....# .....", "###.. ###.. ###.. ....# ....."),
        ("#.... .#... ..#.. ...#. .....", "####. ####. ####. ####. ....."),
        ("#..#. .#... ...#.", "##.#. ##... ...#."),
    ],
)
def test_boxes_around(given_region: str, expected: str) -> None:
    assert drawing(boxed(region(given_region))) == expected


@given(masks())
def test_boxes_hold_the_region_and_do_not_touch(marked: NDArray[np.bool_]) -> None:
    around = boxed(marked)
    assert around[marked].all()
    assert np.array_equal(boxed(around), around)
    boxes = boxes_around(marked)
    assert sum(box.height * box.width for box in boxes) == around.sum()
    for index, box in enumerate(boxes):
        others = np.zeros_like(marked)
        for other in boxes[:index] + boxes[index + 1 :]:
            other.of(others)[:] = True
        assert not box.grown(1, 1, marked.shape).of(others).any()


@given(masks())
def test_components_make_up_the_region(marked: NDArray[np.bool_]) -> None:
    again = np.zeros_like(marked)
    for box, inside in components(marked):
        assert not (box.of(again) & inside).any()
        box.of(again)[:] |= inside
        assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
    assert np.array_equal(again, marked)


def test_nothing_has_no_parts_and_no_box() -> None:
    nothing = np.zeros((3, 4), dtype=np.bool_)
    assert list(components(nothing)) == []
    assert not boxed(nothing).any()
    with pytest.raises(ValueError, match="is empty"):
        bounding_box(nothing)


@given(masks(), st.integers(0, 4))
def test_dilation_reaches_as_many_rows_and_columns(marked: NDArray[np.bool_], radius: int) -> None:
    rows, columns = np.nonzero(marked)
    y, x = np.mgrid[: marked.shape[0], : marked.shape[1]]
    distance = np.maximum(abs(y[..., None] - rows), abs(x[..., None] - columns)).min(axis=-1)
    assert np.array_equal(dilated(marked, radius), distance <= radius)


@settings(max_examples=80)
@given(masks(), st.integers(0, 3))
def test_all_places_are_drawn_from_and_no_others(evidence: NDArray[np.bool_], reach: int) -> None:
    drawn = [drawing(place) for place in control_regions(evidence, reach=reach, key=KEY)]
    expected = places_by_hand(evidence, reach)
    if expected:
        assert len(drawn) == len(expected)
        assert set(drawn) == expected
    else:
        assert len(drawn) <= 1


@settings(max_examples=200)
@given(masks(), st.integers(0, 3), st.binary(max_size=4))
def test_a_region_has_the_evidence_s_area_and_is_off_it(evidence: NDArray[np.bool_], reach: int, key: bytes) -> None:
    places = list(islice(control_regions(evidence, reach=reach, key=key), 3))
    assert [drawing(place) for place in places] == [
        drawing(place) for place in islice(control_regions(evidence, reach=reach, key=key), 3)
    ]
    sizes = Counter((box.height, box.width) for box in boxes_around(evidence))
    for place in places:
        assert place.shape == evidence.shape
        assert not (place & dilated(boxed(evidence), reach)).any()
        assert place.sum() == boxed(evidence).sum()
        if reach:
            assert Counter((box.height, box.width) for box in boxes_around(place)) == sizes


def test_every_place_has_the_same_chance() -> None:
    evidence = region("##...... ##......")
    drawn = Counter(
        drawing(next(control_regions(evidence, reach=1, key=index.to_bytes(2, "big")))) for index in range(4000)
    )
    # Columns 3 to 6; 1000 draws each, with a standard deviation of 27.
    assert len(drawn) == 4
    assert all(abs(count - 1000) < 110 for count in drawn.values())


def test_the_place_of_a_key() -> None:
    evidence = np.zeros((40, 60), dtype=np.bool_)
    evidence[5:15, 8:20] = True
    places = islice(control_regions(evidence, reach=4, key=b"an item"), 3)
    assert [bounding_box(place) for place in places] == [
        Box(23, 42, 33, 54),
        Box(9, 38, 19, 50),
        Box(3, 35, 13, 47),
    ]


def test_parts_move_by_themselves_where_they_cannot_move_together() -> None:
    evidence = region("##......## .......... ..........")
    (place,) = control_regions(evidence, reach=1, key=KEY)
    assert sorted((box.height, box.width) for box in boxes_around(place)) == [(1, 2), (1, 2)]
    assert not (place & dilated(evidence, 1)).any()


@pytest.mark.parametrize(
    "evidence",
    ["#", "##", "###.. ###..", "##..## ##..##", "#...# ..... ..... ..... #...#"],
)
def test_without_room_there_is_none(evidence: str) -> None:
    assert list(control_regions(region(evidence), reach=2, key=KEY)) == []


@pytest.mark.parametrize("size", [(1, 3000), (3000, 20), (20, 3000)])
def test_long_images(size: tuple[int, int]) -> None:
    evidence = np.zeros(size, dtype=np.bool_)
    evidence[: size[0] // 3 + 1, : size[1] // 3 + 1] = True
    place = next(control_regions(evidence, reach=4, key=KEY))
    assert place.sum() == evidence.sum()
    assert not (place & dilated(evidence, 4)).any()


def test_a_box_is_cut_off_at_the_border_and_knows_its_place() -> None:
    box = Box(2, 3, 6, 9)
    assert (box.height, box.width) == (4, 6)
    assert box.grown(3, 5, (7, 30)) == Box(0, 0, 7, 14)
    assert box.inside(Box(1, 1, 9, 9)) == Box(1, 2, 5, 8)
    assert box.moved(-2, 1) == Box(0, 4, 4, 10)
    assert box.of(np.zeros((9, 9))).shape == (4, 6)
