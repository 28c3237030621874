"""The embedded dataset is a function of its seed, and its relations mean what they say."""

from __future__ import annotations

import dataclasses
import errno
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from explicit_learning.data.digits import SIZES, Size, write_dataset, writer
from explicit_learning.data.digits.canvas import HARDNESS, PLAIN
from explicit_learning.data.digits.items import KINDS, STATES, answer_to, make_item, make_views
from explicit_learning.data.digits.pools import load_pool
from explicit_learning.files.hashing import sha256_file, snapshot
from explicit_learning.files.jsonl import read_rows
from explicit_learning.files.schema import validate

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Size(sft_items=20, slot_groups=10, evaluation_groups=10)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(path, gate="data")]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "small"
    write_dataset(folder, seed=3, size=SMALL)
    return folder


def test_same_seed_same_bytes(dataset: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "again", seed=3, size=SMALL)
    assert snapshot(tmp_path / "again") == snapshot(dataset)


def test_another_seed_changes_every_image_of_an_item(dataset: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "other", seed=4, size=SMALL)
    first, second = snapshot(dataset), snapshot(tmp_path / "other")
    assert first.keys() == second.keys()
    assert not [path for path in first if first[path] == second[path]]


def test_more_items_leave_the_first_ones_as_they_were(dataset: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "more", seed=3, size=dataclasses.replace(SMALL, slot_groups=11))
    assert rows_of(tmp_path / "more" / "slots.jsonl")[:40] == rows_of(dataset / "slots.jsonl")


def test_nothing_is_left_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        write_dataset(tmp_path / "broken", seed=3, size=SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(FileExistsError):
        write_dataset(tmp_path, seed=3, size=SMALL)
    assert (tmp_path / "mine").read_text() == "keep"


@pytest.mark.parametrize(
    ("name", "schema", "count"),
    [
        ("slots", "slot-row", 40),
        ("sft_answer", "sft-row", 20),
        ("sft_certificate", "sft-row", 20),
        ("evaluation", "evaluation-row", 50),
    ],
)
def test_rows_fit_their_schema(dataset: Path, name: str, schema: str, count: int) -> None:
    rows = rows_of(dataset / f"{name}.jsonl")
    assert len(rows) == count
    assert [fault for row in rows for fault in validate(row, schema, gate="data", file=name)] == []


def test_the_manifest_names_every_file_by_its_hash(dataset: Path) -> None:
    manifest = json.loads((dataset / "dataset-manifest.json").read_text())
    assert validate(manifest, "dataset-manifest", gate="data", file="manifest") == []
    named = {entry["path"]: entry["sha256"] for entry in manifest["files"] + manifest["images"]}
    assert named == {path: digest for path, digest in snapshot(dataset).items() if path != "dataset-manifest.json"}
    for entry in manifest["files"] + manifest["images"]:
        assert entry["bytes"] == (dataset / entry["path"]).stat().st_size
    assert manifest["counts"] == {"slots": 40, "groups": 10, "sft_rows": 40, "evaluation_rows": 50, "images": 125}


def test_images_in_rows_are_the_files(dataset: Path) -> None:
    for name in ("slots", "evaluation"):
        for row in rows_of(dataset / f"{name}.jsonl"):
            for view in (row["full_view"], row["selected_view"]):
                (image,) = view["images"]
                assert image["sha256"] == sha256_file(dataset / image["path"])
                with Image.open(dataset / image["path"]) as picture:
                    assert picture.size == (image["width"], image["height"]) == (64, 64)


def test_the_parts_share_no_digit_and_hold_them_all() -> None:
    pools = [load_pool("pretraining"), load_pool("train"), load_pool("evaluation")]
    assert [len(pool.indices) for pool in pools] == [898, 449, 450]
    images = [{image.tobytes() for image in pool.images} for pool in pools]
    assert len(images[0] | images[1] | images[2]) == 1797 == sum(map(len, images))
    for pool in pools:
        counts = np.bincount(pool.labels, minlength=10)
        assert counts.min() > 0.9 * counts.max()


def test_the_evidence_is_the_cell_in_question(dataset: Path) -> None:
    boxes = {"upper left": (0, 0), "upper right": (32, 0), "lower left": (0, 32), "lower right": (32, 32)}
    for row in rows_of(dataset / "slots.jsonl"):
        (box,) = row["full_view"]["evidence"]["boxes"]
        (place,) = [name for name in boxes if name in row["question"]]
        left, top = boxes[place]
        assert box == {"image_index": 0, "x0": left, "y0": top, "x1": left + 32, "y1": top + 32}
        assert ("evidence" in row["selected_view"]) == (row["relation"] == "FULL")


def views_by_id(split: Any, index: int) -> tuple[Any, dict[str, Any]]:
    pool = load_pool(split)
    item = make_item(pool, seed=11, index=index)
    return item, {view.view_id: view for view in make_views(item, pool, tuple(STATES))}


@pytest.mark.parametrize("index", range(25))
def test_relations_change_what_they_say_and_nothing_else(index: int) -> None:
    item, views = views_by_id("evaluation", index)
    x0, y0, x1, y1 = item.box
    inside = np.zeros((64, 64), dtype=bool)
    inside[y0:y1, x0:x1] = True
    full = views["full"].pixels
    for view_id, view in views.items():
        changed = view.pixels != full
        if view_id == "full":
            assert not changed.any()
        elif view_id == "control":
            assert changed[~inside].any()
            assert not changed[inside].any()
        else:
            assert changed[inside].any(), view_id
            assert not changed[~inside].any(), view_id
    assert views["full"].target == views["control"].target == item.answer != ""
    assert views["substitute"].target not in {"", item.answer}
    assert views["missing-erased"].target == views["missing-shuffled"].target == ""


def test_shuffling_keeps_the_ink_and_erasing_most_of_it_does_not() -> None:
    pool = load_pool("evaluation")
    ink = {"full": 0, "missing-erased": 0, "missing-shuffled": 0}
    for index in range(40):
        item = make_item(pool, seed=11, index=index, hardness=PLAIN)
        for view in make_views(item, pool, tuple(ink)):
            ink[view.view_id] += int(view.pixels.sum())
    # PLAIN cells hold nothing but the digit, and one cell of four loses it; a fragment is 9 of 64 source pixels.
    assert ink["missing-shuffled"] == ink["full"]
    assert 0.75 < ink["missing-erased"] / ink["full"] < 0.85


def test_training_never_sees_the_second_removal(dataset: Path) -> None:
    trained = {row["selected_view"]["state"] for row in rows_of(dataset / "slots.jsonl")} | {
        row["state"] for name in ("sft_answer", "sft_certificate") for row in rows_of(dataset / f"{name}.jsonl")
    }
    assert trained == {"original", "other_cell_replaced", "evidence_erased", "evidence_replaced"}
    held_out = {row["selected_view"]["state"] for row in rows_of(dataset / "evaluation.jsonl")}
    assert held_out - trained == {"evidence_shuffled"}


def test_the_certificate_arm_sees_every_relation_and_the_answer_arm_only_the_original(dataset: Path) -> None:
    answer, certificate = (rows_of(dataset / f"sft_{arm}.jsonl") for arm in ("answer", "certificate"))
    assert {row["relation"] for row in answer} == {"FULL"}
    relations = [row["relation"] for row in certificate]
    assert {relation: relations.count(relation) for relation in relations} == dict.fromkeys(
        ("FULL", "CONTROL", "MISSING", "SUBSTITUTE"), 5
    )
    assert [row["group_id"] for row in answer] == [row["group_id"] for row in certificate]
    for row in answer + certificate:
        assert (row["target"] == "") == (row["relation"] == "MISSING")
        assert row["assistant_response"] == f"<answer>{row['target']}</answer>"


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        ("number", ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]),
        ("boolean", ["no"] * 6 + ["yes"] * 4),
        ("choice", ["A", "A", "A", "B", "B", "B", "C", "C", "D", "D"]),
    ],
)
def test_answers(kind: Any, answers: list[str]) -> None:
    assert [answer_to(kind, digit) for digit in range(10)] == answers


def test_the_named_sizes_exercise_every_kind_with_every_relation(tmp_path: Path) -> None:
    write_dataset(tmp_path / "quick", seed=0, size=SIZES["quick"])
    seen = {(row["answer_type"], row["relation"]) for row in rows_of(tmp_path / "quick" / "sft_certificate.jsonl")}
    assert len(seen) == len(set(KINDS)) * 4
    assert SIZES["demo"].sft_items > SIZES["quick"].sft_items
    # What was learnt on hard cells is asked on easier ones, so that a short SFT stage can teach abstention.
    assert SIZES["demo"].hardness.noise < HARDNESS.noise
