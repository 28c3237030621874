"""PAPO's masks: drawn reproducibly, and applied exactly where the image processor put the pixels."""

from __future__ import annotations

import random

import pytest
import torch

from explicit_learning.training.objectives.masks import PixelLayout, black_out, draw_squares, mask_generator

pytestmark = pytest.mark.objectives


def squares(**keys: object) -> list[list[bool]]:
    keyed = {"seed": 3, "slot_id": "s", "visit": 0} | keys
    generator = mask_generator(**keyed)  # type: ignore[arg-type] # its arguments by name
    return draw_squares(generator, height=96, width=128, side=32, probability=0.6)


def test_a_mask_is_a_function_of_seed_slot_and_visit() -> None:
    first = squares()
    torch.manual_seed(5)
    random.seed(5)
    assert squares() == first
    assert all(squares(**other) != first for other in ({"seed": 4}, {"slot_id": "t"}, {"visit": 1}))


def test_the_drawn_mask_never_changes() -> None:
    assert ["".join(".#"[black] for black in row) for row in squares()] == ["#.##", "##.#", "####"]


def test_squares_are_cut_off_at_the_border() -> None:
    drawn = draw_squares(random.Random(0), height=64, width=96, side=40, probability=0.5)  # noqa: S311 - no secret
    assert [len(row) for row in drawn] == [3, 3]


def test_squares_are_black_with_the_planned_probability() -> None:
    drawn = draw_squares(random.Random(1), height=3200, width=3200, side=32, probability=0.6)  # noqa: S311 - no secret
    share = sum(map(sum, drawn)) / 10_000
    assert abs(share - 0.6) < 0.02  # four standard deviations


def test_drawing_leaves_torchs_generator_alone() -> None:
    state = torch.random.get_rng_state()
    squares()
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.training
@pytest.mark.parametrize("side", [32, 16, 20, 64, 7])
def test_it_is_processing_an_image_whose_resized_pixels_were_blacked_out(side: int) -> None:
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(
        patch_size=16,
        merge_size=2,
        size={"shortest_edge": 1024, "longest_edge": 1 << 24},
        image_mean=[0.48145466, 0.4578275, 0.5],
        image_std=[0.26862954, 0.26130258, 0.5],
    )
    torch.manual_seed(0)
    # Multiples of a cell, so that the processor's resize leaves them as they are.
    images = [
        torch.randint(0, 256, (3, 96, 64), dtype=torch.uint8),
        torch.randint(0, 256, (3, 32, 160), dtype=torch.uint8),
    ]
    plain = processor(images=images, return_tensors="pt")
    generator = mask_generator(seed=0, slot_id="s", visit=2)
    drawn = [
        draw_squares(generator, height=image.shape[1], width=image.shape[2], side=side, probability=0.6)
        for image in images
    ]
    assert any(map(any, drawn[0]))
    blacked = []
    for image, chosen in zip(images, drawn, strict=True):
        copy = image.clone()
        for row, line in enumerate(chosen):
            for column, black in enumerate(line):
                if black:
                    copy[:, row * side : (row + 1) * side, column * side : (column + 1) * side] = 0
        blacked.append(copy)
    expected = processor(images=blacked, return_tensors="pt")["pixel_values"]
    layout = PixelLayout.of(processor)
    before = plain["pixel_values"].clone()
    masked = black_out(plain["pixel_values"], plain["image_grid_thw"], drawn, side=side, layout=layout)
    assert torch.equal(masked, expected)
    assert torch.equal(plain["pixel_values"], before)
    assert not torch.equal(masked, before)
