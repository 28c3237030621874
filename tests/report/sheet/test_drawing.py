"""Changes and drawings, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from explicit_learning.data.rows import Relation
from explicit_learning.report.sheet.changes import BAND, Changes, changed_pixels, changes_of, verdict
from explicit_learning.report.sheet.drawing import (
    CHANGED,
    EDGE,
    LINE,
    TILE,
    box_mask,
    difference_tile,
    is_enlarged,
    tile,
)


def painted(size: tuple[int, int], box: tuple[int, int, int, int]) -> Image.Image:
    image = Image.new("RGB", size, (90, 90, 90))
    image.paste((200, 20, 20), box)
    return image


@pytest.mark.parametrize("top", [0, BAND - 1, BAND, 2 * BAND + 3])
def test_changed_pixels_are_found_in_every_band(top: int) -> None:
    size = (4, 2 * BAND + 4)
    changed = changed_pixels(Image.new("RGB", size, (90, 90, 90)), painted(size, (1, top, 3, top + 1)))
    assert changed is not None
    assert np.argwhere(changed).tolist() == [[top, 1], [top, 2]]


def test_the_smallest_change_of_one_channel_counts() -> None:
    full = Image.new("RGB", (2, 1), (90, 90, 90))
    other = full.copy()
    other.putpixel((1, 0), (90, 90, 91))
    changed = changed_pixels(full, other)
    assert changed is not None
    assert changed.tolist() == [[False, True]]


def test_images_of_two_sizes_are_not_compared() -> None:
    assert changed_pixels(Image.new("RGB", (2, 1)), Image.new("RGB", (1, 2))) is None


def test_changes_are_counted_inside_and_outside_the_evidence() -> None:
    changed = box_mask([(0, 0, 5, 10)], width=20, height=10)
    evidence = box_mask([(0, 0, 10, 10)], width=20, height=10)
    assert changes_of(changed, evidence) == Changes(share=0.25, inside=0.5, outside=0.0)
    assert changes_of(changed, None) == Changes(share=0.25, inside=None, outside=None)
    assert changes_of(changed, np.ones_like(changed)) == Changes(share=0.25, inside=0.25, outside=None)


NOTHING = Changes(share=0.0, inside=0.0, outside=0.0)
INSIDE = Changes(share=0.1, inside=0.5, outside=0.0)
OUTSIDE = Changes(share=0.1, inside=0.0, outside=0.5)
UNMARKED = Changes(share=0.1, inside=None, outside=None)


@pytest.mark.parametrize(
    ("relation", "changes", "expected"),
    [
        (Relation.FULL, [NOTHING], None),
        (Relation.MISSING, [INSIDE], None),
        (Relation.MISSING, [NOTHING, INSIDE], None),
        (Relation.MISSING, [NOTHING], "this MISSING view shows exactly the pixels of the FULL view"),
        (Relation.MISSING, [OUTSIDE], "this MISSING view leaves the evidence as it is"),
        (Relation.MISSING, [UNMARKED], None),
        (Relation.SUBSTITUTE, [OUTSIDE], "this SUBSTITUTE view leaves the evidence as it is"),
        (Relation.SUBSTITUTE, [], None),
        (Relation.CONTROL, [OUTSIDE], None),
        (Relation.CONTROL, [INSIDE], "this CONTROL view changes the evidence"),
        (Relation.CONTROL, [NOTHING], "this CONTROL view shows exactly the pixels of the FULL view"),
    ],
)
def test_a_verdict_says_what_is_wrong_with_an_intervention(
    relation: Relation, changes: list[Changes], expected: str | None
) -> None:
    assert verdict(relation, changes) == expected


@pytest.mark.parametrize(
    ("size", "shown", "enlarged"),
    [
        ((64, 64), (192, 192), True),
        ((20, 10), (240, 120), True),
        ((120, 1), (240, 2), True),
        ((121, 100), (121, 100), False),
        ((240, 100), (240, 100), False),
        ((480, 240), (240, 120), False),
        ((1000, 333), (240, 79), False),
        ((3000, 2), (240, 1), False),
        ((1, 1), (240, 240), True),
    ],
)
def test_tiles_have_one_size_and_small_images_whole_pixels(
    size: tuple[int, int], shown: tuple[int, int], enlarged: bool
) -> None:
    image = Image.new("RGB", size, (90, 90, 90))
    assert (tile(image, None).size, is_enlarged(image)) == (shown, enlarged)
    assert max(shown) <= TILE
    evidence = box_mask([(0, 0, 1, 1)], width=size[0], height=size[1])
    assert tile(image, evidence).size == shown
    assert difference_tile(image, evidence, evidence).size == shown


def test_evidence_is_outlined_around_and_at_the_edges_inside() -> None:
    image = Image.new("RGB", (200, 200), (90, 90, 90))
    shown = tile(image, box_mask([(50, 60, 100, 110)], width=200, height=200))
    column = [shown.getpixel((70, y)) for y in (56, 57, 58, 59, 60, 109, 110, 111, 112, 113)]
    grey = (90, 90, 90)
    assert column == [grey, EDGE, LINE, LINE, grey, grey, LINE, LINE, EDGE, grey]
    whole = tile(image, np.ones((200, 200), dtype=np.bool_))
    assert [whole.getpixel((70, y)) for y in (0, 1, 2, 197, 198, 199)] == [LINE, LINE, grey, grey, LINE, LINE]


@pytest.mark.parametrize("size", [(20, 10), (240, 240), (4001, 3001)])
def test_one_changed_pixel_is_seen_at_every_size(size: tuple[int, int]) -> None:
    place = (size[0] - 1, size[1] // 2)
    changed = box_mask([(*place, place[0] + 1, place[1] + 1)], width=size[0], height=size[1])
    shown = difference_tile(Image.new("RGB", size, (90, 90, 90)), changed, None)
    assert CHANGED in {colour for _, colour in shown.getcolors(1 << 20) or []}


def test_a_comparison_shows_full_pale_and_the_changes_in_one_colour() -> None:
    changed = box_mask([(0, 0, 10, 10)], width=20, height=10)
    shown = difference_tile(painted((20, 10), (0, 0, 0, 0)), changed, None)
    assert sorted(shown.getcolors() or []) == [(120 * 120, (189, 189, 189)), (120 * 120, CHANGED)]


def test_boxes_beyond_the_image_are_cut() -> None:
    assert box_mask([(-5, -5, 2, 1), (1, 1, 99, 99)], width=3, height=2).tolist() == [
        [True, True, False],
        [False, True, True],
    ]
