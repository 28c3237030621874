"""What images show decides, not their bytes: interventions, golds and leakage compared by decoded pixels."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from explicit_learning.data.dataset import check_dataset
from tests.support.dataset_builder import Builder, asset_entry, brief, image_bytes

if TYPE_CHECKING:
    from pathlib import Path

FULL, CONTROL, MISSING, SUBSTITUTE = range(4)
SHOWN = ("path", "sha256", "width", "height")


@pytest.fixture
def good(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def show(good: Builder, row: dict[str, Any], entry: dict[str, Any]) -> None:
    """Let a row show an image that the manifest then lists."""
    if entry not in good.images:
        good.images.append(entry)
    view = row.get("selected_view", row)
    view["images"] = [{"image_index": 0} | {name: entry[name] for name in SHOWN}]


def again(good: Builder, name: str, gray: int) -> dict[str, Any]:
    """Write the pixels of an existing image into another file, with other bytes."""
    path = good.folder / name
    Image.new("RGB", (8, 6), (gray,) * 3).save(path, compress_level=0)
    return asset_entry(good.folder, name, (8, 6))


@pytest.mark.parametrize("index", [MISSING, SUBSTITUTE])
@pytest.mark.parametrize("same_bytes", [True, False])
def test_an_intervention_that_changes_nothing(good: Builder, index: int, same_bytes: bool) -> None:
    entry = good.images[0] if same_bytes else again(good, "images/again.png", 10)
    show(good, good.slots[index], entry)
    show(good, good.sft[index], entry)
    faults = check_dataset(good.write()).faults
    assert brief(faults) == [
        (f"slots.jsonl:{index + 1}", "/selected_view/images"),
        (f"sft.jsonl:{index + 1}", "/images"),
    ]
    name = good.slots[index]["slot_id"]
    assert faults[0].found.endswith(f"with exactly the pixels of the FULL one, full_view ({name})")


def test_a_control_view_may_repeat_the_full_one(good: Builder) -> None:
    show(good, good.slots[CONTROL], again(good, "images/again.png", 10))
    assert check_dataset(good.write()).faults == ()


def test_held_out_interventions_are_compared_too(good: Builder) -> None:
    show(good, good.evaluation[MISSING], again(good, "images/again.png", 110))
    assert brief(check_dataset(good.write()).faults) == [("evaluation.jsonl:3", "/selected_view/images")]


def second_group(good: Builder, gold: str) -> None:
    """Add a group that asks the same about the same pixels, in another file."""
    row = copy.deepcopy(good.slots[FULL])
    row |= {"slot_id": "train-1.full", "group_id": "train-1", "base_id": "train-1", "full_answer": gold}
    show(good, row, again(good, "images/twin.png", 10))
    row["full_view"] = copy.deepcopy(row["selected_view"])
    good.slots.append(row)


def test_one_prompt_with_two_golds(good: Builder) -> None:
    second_group(good, "2")
    (fault,) = check_dataset(good.write()).faults
    assert brief([fault]) == [("slots.jsonl:5", "/selected_view/images")]
    assert 'where "7" is right and not "2" (train-1.full)' in fault.found
    assert "slots.jsonl:1" in fault.found


@pytest.mark.parametrize(("index", "like"), [(MISSING, CONTROL), (SUBSTITUTE, MISSING), (SUBSTITUTE, CONTROL)])
@pytest.mark.parametrize("rows", ["slots", "evaluation", "sft"])
def test_two_views_of_a_group_with_the_same_pixels_and_two_golds(
    good: Builder, rows: str, index: int, like: int
) -> None:
    """A model is asked the same twice, and rewarded for two answers."""
    members = getattr(good, rows)
    if rows == "sft":
        good.slots = []
    shown = members[like].get("selected_view", members[like])["images"]
    members[index].get("selected_view", members[index])["images"] = copy.deepcopy(shown)
    (fault,) = check_dataset(good.write()).faults
    pointer = "/images" if rows == "sft" else "/selected_view/images"
    assert brief([fault]) == [(f"{rows}.jsonl:{index + 1}", pointer)]
    assert f"{rows}.jsonl:{like + 1}" in fault.found


@pytest.mark.parametrize(("gold", "good_data"), [("north", False), ("7", True)])
def test_one_prompt_with_golds_of_two_types(good: Builder, gold: str, good_data: bool) -> None:
    """The type of an answer is not a part of the prompt."""
    second_group(good, gold)
    good.slots[-1]["answer_type"] = "text"
    faults = check_dataset(good.write()).faults
    assert brief(faults) == ([] if good_data else [("slots.jsonl:5", "/selected_view/images")])


def test_one_prompt_with_the_same_gold_twice_is_good(good: Builder) -> None:
    second_group(good, "7.0")
    assert check_dataset(good.write()).faults == ()


def test_another_question_about_the_same_pixels_is_good(good: Builder) -> None:
    second_group(good, "2")
    good.slots[-1]["question"] = "Which digit is in the upper left cell?"
    assert check_dataset(good.write()).faults == ()


def test_a_training_image_encoded_again_and_held_out(good: Builder) -> None:
    entry = again(good, "images/leak.png", 10)
    good.images.append(entry)
    image = {"image_index": 0} | {name: entry[name] for name in SHOWN}
    for row in good.evaluation:
        row["full_view"]["images"] = [dict(image)]
    good.evaluation[FULL]["selected_view"]["images"] = [dict(image)]
    faults = check_dataset(good.write()).faults
    assert brief(faults) == [(f"evaluation.jsonl:{line}", "/full_view/images/0") for line in range(1, 5)]
    assert faults[0].found.startswith('evaluation leakage: "images/leak.png" has exactly the pixels of an image')
    assert "images/train-0-full.png" in faults[0].found


@pytest.mark.parametrize("same_bytes", [True, False])
@pytest.mark.parametrize(
    ("trained", "held_out", "leaks"),
    [
        (SUBSTITUTE, FULL, [(line, "/full_view/images") for line in range(1, 5)]),
        (FULL, SUBSTITUTE, [(4, "/selected_view/images")]),
        (CONTROL, CONTROL, [(2, "/selected_view/images")]),
        (MISSING, MISSING, []),
        (MISSING, FULL, []),
    ],
)
def test_a_trained_view_that_is_held_out(
    good: Builder, trained: int, held_out: int, leaks: list[tuple[int, str]], same_bytes: bool
) -> None:
    """What shows evidence is not seen in training; views without any, such as blank ones, may be alike."""
    (image,) = good.slots[trained]["selected_view"]["images"]
    entry = next(entry for entry in good.images if entry["path"] == image["path"])
    with Image.open(good.folder / entry["path"]) as picture:
        gray = picture.getpixel((0, 0))
    show(good, good.evaluation[held_out], entry if same_bytes else again(good, "images/leak.png", gray))
    if held_out == FULL:
        for row in good.evaluation:
            row["full_view"]["images"] = copy.deepcopy(good.evaluation[FULL]["selected_view"]["images"])
    faults = check_dataset(good.write()).faults
    assert brief(faults) == [(f"evaluation.jsonl:{line}", pointer) for line, pointer in leaks]
    assert all("evaluation leakage: the view has exactly the pixels" in fault.found for fault in faults)


@pytest.mark.parametrize("colour", [0, 255])
def test_transparent_images_are_named(good: Builder, colour: int) -> None:
    """White writing on nothing cannot be seen on white."""
    name = "images/train-0-control.png"
    drawing = Image.new("RGBA", (8, 6), (0, 0, 0, 0))
    drawing.paste((colour, colour, colour, 255), (2, 2, 4, 4))
    drawing.save(good.folder / name)
    entry = asset_entry(good.folder, name, (8, 6))
    good.images[CONTROL] = entry
    for row in (good.slots[CONTROL], good.sft[CONTROL]):
        show(good, row, entry)
    mask = image_bytes(good.folder, "masks/a.png", 255)
    Image.new("LA", (8, 6), (255, 0)).save(good.folder / mask["path"])
    good.images.append(asset_entry(good.folder, mask["path"], (8, 6)))
    transparent = f"/data: 1 image has transparent pixels, which are shown on white: {name}"
    blank = f"/data: 1 image shows one colour only, because of transparent pixels: {name}"
    for _ in ("decoded", "remembered"):
        checked = check_dataset(good.write())
        assert checked.faults == ()
        assert checked.warnings == ((transparent, blank) if colour == 255 else (transparent,))
