"""Evidence in pixels becomes shares of image tokens' cells, counted exactly."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explicit_learning.data.evidence import box_shares, evidence_donors, mask_shares, view_shares
from explicit_learning.data.image_grid import Grid, ResizeRules
from explicit_learning.data.rows import EvidenceBox, EvidenceMask, ImageRef, Relation, View
from explicit_learning.errors import Refusal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.objectives

RULES = ResizeRules(patch=16, merge=2, min_pixels=32 * 32, max_pixels=1 << 24)


def grid(rows: int, columns: int) -> Grid:
    return Grid(height=32 * rows, width=32 * columns, rows=rows, columns=columns)


def box(x0: int, y0: int, x1: int, y1: int, image: int = 0) -> EvidenceBox:
    return EvidenceBox(image_index=image, x0=x0, y0=y0, x1=x1, y1=y1)


def view(*sizes: tuple[int, int], boxes: tuple[EvidenceBox, ...] = (), masks: tuple[EvidenceMask, ...] = ()) -> View:
    images = tuple(
        ImageRef(image_index=index, path=f"{index}.png", sha256="0" * 64, width=width, height=height)
        for index, (width, height) in enumerate(sizes)
    )
    return View(view_id="full", role=Relation.FULL, state="original", images=images, boxes=boxes, masks=masks)


def test_a_box_on_cell_borders_covers_exactly_those_cells() -> None:
    assert box_shares([box(0, 32, 32, 64)], width=64, height=64, grid=grid(2, 2)) == (0.0, 0.0, 1.0, 0.0)


def test_a_box_across_cells_covers_a_share_of_each() -> None:
    # 64x32 pixels, two cells side by side: 8 of 32 columns in the first, 16 in the second, half of the rows.
    assert box_shares([box(24, 0, 48, 16)], width=64, height=32, grid=grid(1, 2)) == (0.125, 0.25)


def test_cells_follow_the_resize_when_the_image_is_no_multiple_of_a_cell() -> None:
    # 50 pixels become two cells of 25 pixels each.
    assert box_shares([box(20, 0, 30, 40)], width=50, height=40, grid=grid(1, 2)) == (0.2, 0.2)


def test_overlapping_boxes_cover_a_pixel_once() -> None:
    boxes = [box(0, 0, 20, 20), box(10, 10, 30, 30), box(0, 0, 20, 20)]
    assert box_shares(boxes, width=40, height=40, grid=grid(1, 1)) == (700 / 1600,)


def test_parts_outside_the_image_count_as_nothing() -> None:
    assert box_shares([box(16, 0, 999, 32), box(40, 0, 50, 10)], width=32, height=32, grid=grid(1, 1)) == (0.5,)


@st.composite
def boxed_images(draw: st.DrawFn) -> tuple[int, int, int, int, list[EvidenceBox]]:
    width, height = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    rows, columns = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    corner = st.tuples(st.integers(0, width - 1), st.integers(0, height - 1))
    boxes = []
    for (xa, ya), (xb, yb) in draw(st.lists(st.tuples(corner, corner), max_size=5)):
        boxes.append(box(min(xa, xb), min(ya, yb), max(xa, xb) + 1, max(ya, yb) + 1))
    return width, height, rows, columns, boxes


def shares_by_counting(
    width: int, height: int, rows: int, columns: int, marked: set[tuple[int, int]]
) -> list[Fraction]:
    """The definition, pixel by pixel and cell by cell."""
    cell_width, cell_height = Fraction(width, columns), Fraction(height, rows)
    shares = []
    for row in range(rows):
        for column in range(columns):
            area = Fraction(0)
            for x, y in marked:
                across = min(x + 1, (column + 1) * cell_width) - max(x, column * cell_width)
                down = min(y + 1, (row + 1) * cell_height) - max(y, row * cell_height)
                area += max(across, Fraction(0)) * max(down, Fraction(0))
            shares.append(area / (cell_width * cell_height))
    return shares


@settings(deadline=None, max_examples=40)  # the counting is slow
@given(boxed_images())
def test_boxes_agree_with_counting_pixels(case: tuple[int, int, int, int, list[EvidenceBox]]) -> None:
    width, height, rows, columns, boxes = case
    marked = {(x, y) for item in boxes for x in range(item.x0, item.x1) for y in range(item.y0, item.y1)}
    expected = shares_by_counting(width, height, rows, columns, marked)
    assert box_shares(boxes, width=width, height=height, grid=grid(rows, columns)) == tuple(map(float, expected))


@settings(deadline=None, max_examples=40)  # the first call imports numpy
@given(boxed_images())
def test_a_mask_says_the_same_as_the_boxes_it_was_painted_from(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[int, int, int, int, list[EvidenceBox]]
) -> None:
    from PIL import Image

    width, height, rows, columns, boxes = case
    image = Image.new("L", (width, height))
    for item in boxes:
        image.paste(7, (item.x0, item.y0, item.x1, item.y1))
    path = tmp_path_factory.getbasetemp() / "mask.png"
    image.save(path)
    sizes = {"width": width, "height": height, "grid": grid(rows, columns)}
    assert mask_shares(path, **sizes) == pytest.approx(box_shares(boxes, **sizes), abs=1e-12)


@pytest.mark.parametrize("mode", ["1", "L", "P", "I;16", "LA", "RGB", "RGBA"])
def test_every_kind_of_mask_marks_what_is_not_zero(tmp_path: Path, mode: str) -> None:
    from PIL import Image

    one = {"1": 1, "L": 1, "P": 3, "I;16": 300, "LA": (9, 0), "RGB": (0, 0, 5), "RGBA": (0, 8, 0, 0)}[mode]
    none = {"LA": (0, 255), "RGBA": (0, 0, 0, 255)}.get(mode, 0)
    image = Image.new(mode, (64, 32), none)
    image.paste(one, (32, 0, 64, 16))
    image.save(tmp_path / "mask.png")
    assert mask_shares(tmp_path / "mask.png", width=64, height=32, grid=grid(1, 2)) == (0.0, 0.5)


def test_a_mask_of_another_size_is_an_error(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("L", (32, 32)).save(tmp_path / "mask.png")
    with pytest.raises(ValueError, match="a mask of 32 by 32 pixels for 64 by 32"):
        mask_shares(tmp_path / "mask.png", width=64, height=32, grid=grid(1, 2))


def test_a_view_lists_its_images_tokens_one_image_after_the_other(tmp_path: Path) -> None:
    shown = view((64, 64), (32, 32), boxes=(box(0, 0, 32, 32), box(0, 0, 16, 32, image=1)))
    assert view_shares(shown, RULES, asset_root=tmp_path) == (1.0, 0.0, 0.0, 0.0, 0.5)


def test_a_view_without_evidence_has_none(tmp_path: Path) -> None:
    assert view_shares(view((64, 64)), RULES, asset_root=tmp_path) is None


def test_masks_are_read_below_the_asset_root_only(tmp_path: Path) -> None:
    from PIL import Image

    root = tmp_path / "assets"
    root.mkdir()
    Image.new("L", (64, 64), 1).save(root / "mask.png")
    Image.new("L", (64, 64), 1).save(tmp_path / "outside.png")
    (root / "link.png").symlink_to(tmp_path / "outside.png")

    def shares(path: str) -> tuple[float, ...] | None:
        masks = (EvidenceMask(image_index=0, path=path, sha256="0" * 64),)
        return view_shares(view((64, 64), masks=masks), RULES, asset_root=root)

    assert shares("mask.png") == (1.0, 1.0, 1.0, 1.0)
    for path in ("../outside.png", "link.png", "absent.png"):
        with pytest.raises(Refusal, match=path.removeprefix("../")):
            shares(path)


def test_evidence_of_another_view_lies_at_the_same_relative_place(tmp_path: Path) -> None:
    donor = view((128, 128), boxes=(box(64, 64, 128, 128),))
    receiver = view((64, 64), (32, 32), boxes=(box(0, 0, 32, 32),))
    assert view_shares(receiver, RULES, asset_root=tmp_path, evidence_of=donor) == (0.0, 0.0, 0.0, 1.0, 0.0)


@given(st.sets(st.text(min_size=1, max_size=5), min_size=2, max_size=30), st.integers(0, 2**32 - 1))
def test_shuffling_evidence_is_a_permutation_without_fixed_points(groups: set[str], seed: int) -> None:
    donors = evidence_donors(groups, seed=seed)
    assert set(donors) == groups == set(donors.values())
    assert all(donor != group for group, donor in donors.items())
    assert evidence_donors(sorted(groups, reverse=True), seed=seed) == donors


def test_shuffling_depends_on_the_seed_and_never_changes() -> None:
    groups = [f"g{index}" for index in range(5)]
    assert evidence_donors(groups, seed=0) == {"g0": "g2", "g1": "g0", "g2": "g3", "g3": "g4", "g4": "g1"}
    assert evidence_donors(groups, seed=0) != evidence_donors(groups, seed=2)


def test_one_group_alone_keeps_its_own() -> None:
    assert evidence_donors(["only"], seed=3) == {"only": "only"}


def test_an_image_too_long_for_the_processor_is_an_error() -> None:
    assert RULES.grid(width=1, height=200).rows == 15
    with pytest.raises(ValueError, match="over 200 times"):
        RULES.grid(width=1, height=201)


def test_only_an_image_one_token_wide_has_more_tokens_than_the_limit() -> None:
    limit = 64
    rules = ResizeRules(patch=16, merge=2, min_pixels=1024, max_pixels=limit * 1024)
    # The long side shrinks by sqrt(pixels / limit), the short one would become less than a cell of 32 pixels.
    assert rules.grid(width=6400, height=32).tokens == 113
    assert rules.grid(width=80, height=12_800).tokens == 101
    sides = (1, 31, 32, 33, 47, 80, 200, 700, 2000, 6400)
    grids = [rules.grid(width=w, height=h) for w in sides for h in sides if max(w, h) <= 200 * min(w, h)]
    above = [grid for grid in grids if grid.tokens > limit]
    assert above
    assert {min(grid.rows, grid.columns) for grid in above} == {1}


def test_rules_are_read_from_the_models_folder(tmp_path: Path) -> None:
    config = {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 1024, "longest_edge": 1 << 24}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    assert ResizeRules.of_model(tmp_path, max_image_tokens=None) == RULES


def test_rules_that_are_not_stated_are_refused(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"patch_size": 16, "size": {"longest_edge": 0}}))
    with pytest.raises(Refusal) as refusal:
        ResizeRules.of_model(tmp_path, max_image_tokens=None)
    pointers = [fault.pointer for fault in refusal.value.faults]
    assert pointers == ["/merge_size", "/size/shortest_edge", "/size/longest_edge"]


@pytest.mark.training
def test_the_grid_is_the_image_processors(tmp_path: Path) -> None:
    import random

    import torch
    from transformers import Qwen2VLImageProcessor

    draw = random.Random(0)  # noqa: S311 - image sizes
    bounds = [(1024, 1 << 24), (65536, 16777216), (1024, 512 * 1024), (1024, 64 * 1024)]
    sizes = [(1, 200), (200, 1), (16, 16), (48, 48), (47, 49), (33, 31), (640, 480), (1023, 767), (64, 64), (80, 80)]
    sizes += [(6400, 32), (80, 12_800)]
    sizes += [(draw.randrange(8, 400), draw.randrange(8, 400)) for _ in range(25)]
    for fewest, most in bounds:
        processor = Qwen2VLImageProcessor(
            patch_size=16, merge_size=2, size={"shortest_edge": fewest, "longest_edge": most}
        )
        processor.save_pretrained(tmp_path)
        rules = ResizeRules.of_model(tmp_path, max_image_tokens=None)
        assert rules == ResizeRules(patch=16, merge=2, min_pixels=fewest, max_pixels=most)
        for width, height in sizes:
            images = torch.zeros(3, height, width, dtype=torch.uint8)
            found = processor(images=[images], return_tensors="pt")["image_grid_thw"][0].tolist()
            grid = rules.grid(width=width, height=height)
            assert found == [1, grid.rows * 2, grid.columns * 2], (width, height)
            assert (grid.height, grid.width) == (grid.rows * 32, grid.columns * 32)
        for _ in range(3000):
            width, height = draw.randrange(60, 9000), draw.randrange(60, 9000)
            grid = rules.grid(width=width, height=height)
            found = processor.get_number_of_image_patches(height, width, {})
            assert found == grid.tokens * 4, (width, height)
