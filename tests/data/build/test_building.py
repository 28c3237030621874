"""A built dataset passes the gate, is a function of its source and options, and shares no picture between the sides."""

from __future__ import annotations

import errno
import json
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from explicit_learning.data.build import folder, images, intake, viewing
from explicit_learning.data.build.folder import BuildingFolder
from explicit_learning.data.build.options import Shares
from explicit_learning.data.build.report import HELD_OUT
from explicit_learning.data.dataset import check_dataset
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import snapshot
from explicit_learning.files.jsonl import read_rows
from explicit_learning.files.schema import validate
from tests.support.drawn_source import COLOURS, drawn_picture, drawn_row, drawn_source, write_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Build = Callable[..., Any]

# Of 20 drawn rows of 48 by 48 pixels; it changes with every change of bytes that is meant (see GENERATOR_VERSION).
GOLDEN = "fb1b9e43c352adfb97578eb212bdf928891fc9787f7a74b63d8ad89d13d3b17d"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(path, gate="data")]


def faults_of(folder: Path) -> list[str]:
    return [str(fault) for fault in check_dataset(folder / "dataset-manifest.json").faults]


def refused(folder: Path) -> list[dict[str, Any]]:
    return rows_of(folder / "refused.jsonl")


def documents(folder: Path) -> dict[str, str]:
    """Return the hashes of all that training reads."""
    return {name: sha256 for name, sha256 in snapshot(folder).items() if name not in {"items.jsonl", "refused.jsonl"}}


def test_a_built_dataset_passes_the_gate_and_has_known_bytes(build: Build, tmp_path: Path) -> None:
    built = build(drawn_source(tmp_path / "source", 20), tmp_path / "out")
    assert faults_of(tmp_path / "out") == []
    assert check_dataset(built.manifest).manifest.sha256 == built.identity  # type: ignore[union-attr] # it has one
    assert built.items == {"evaluation": 4, "sft": 6, "slots": 10}
    assert built.relations["slots"] == {"CONTROL": 10, "FULL": 10, "MISSING": 10}
    assert built.relations["evaluation"] == {"CONTROL": 4, "FULL": 4, "MISSING": 8}
    assert sum(built.relations["sft"].values()) <= 12
    assert not (tmp_path / "out.building").exists()
    assert built.identity == GOLDEN


def test_what_lies_in_the_folder_is_what_the_manifest_names(build: Build, tmp_path: Path) -> None:
    build(drawn_source(tmp_path / "source", 20), tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "dataset-manifest.json").read_text())
    assert validate(manifest, "dataset-manifest", gate="data", file="manifest") == []
    named = {entry["path"]: entry["sha256"] for entry in manifest["files"] + manifest["images"]}
    named_here = documents(tmp_path / "out")
    del named_here["dataset-manifest.json"]
    assert named_here == named
    assert str(tmp_path) not in json.dumps(manifest)


@pytest.mark.parametrize(("name", "schema"), [("refused", "refused-row"), ("items", "built-item")])
def test_the_lists_beside_the_rows_fit_their_schemas(build: Build, tmp_path: Path, name: str, schema: str) -> None:
    rows = [drawn_row(index, tmp_path, 48) for index in range(12)]
    rows[3]["boxes"] = [[0, 0, 4800, 10]]
    build(write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out")
    lines = rows_of(tmp_path / "out" / f"{name}.jsonl")
    assert len(lines) == {"refused": 1, "items": 11}[name]
    assert [fault for line in lines for fault in validate(line, schema, gate="data", file=name)] == []


def test_the_order_of_rows_changes_nothing_but_the_sources_hash(build: Build, tmp_path: Path) -> None:
    rows = [drawn_row(index, tmp_path, 48) for index in range(20)]
    for row in rows[10:]:
        del row["id"]
    build(write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out")
    rows = [rows[index] for index in np.random.default_rng(0).permutation(len(rows))]
    build(write_jsonl(tmp_path / "shuffled.jsonl", rows), tmp_path / "other")
    one, other = documents(tmp_path / "out"), documents(tmp_path / "other")
    assert one.pop("dataset-manifest.json") != other.pop("dataset-manifest.json")
    assert one == other


def test_training_never_sees_the_operator_of_evaluation(build: Build, tmp_path: Path) -> None:
    build(drawn_source(tmp_path / "source", 20), tmp_path / "out")
    trained = {row["selected_view"]["state"] for row in rows_of(tmp_path / "out" / "slots.jsonl")}
    trained |= {row["state"] for row in rows_of(tmp_path / "out" / "sft_certificate.jsonl")}
    held_out = {row["selected_view"]["state"] for row in rows_of(tmp_path / "out" / "evaluation.jsonl")}
    options = json.loads((tmp_path / "out" / "dataset-manifest.json").read_text())["generator"]["options"]["views"]
    assert trained == {"original", *options["training_operators"]}
    assert held_out - trained == {options["evaluation_operator"]}


# --- interruptions ------------------------------------------------------------------------------------------------


@pytest.fixture
def _commits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (intake, viewing):
        monkeypatch.setattr(module, "COMMIT_SECONDS", 0.0)
        monkeypatch.setattr(module, "_CHUNK", 3)


@pytest.mark.usefixtures("_commits_at_once")
def test_a_build_that_is_stopped_anywhere_goes_on_and_ends_the_same(build: Build, tmp_path: Path) -> None:
    source = drawn_source(tmp_path / "source", 14)
    build(source, tmp_path / "whole", paste_substitutes=True)
    stops = 0
    while not (tmp_path / "out").exists():
        asked = iter([False, True])
        try:
            build(source, tmp_path / "out", paste_substitutes=True, stop=partial(next, asked, True))
        except Refusal as refusal:
            stops += refusal.exit_code is ExitCode.STOPPED
    assert stops > 3
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "whole")


@pytest.mark.usefixtures("_commits_at_once")
@pytest.mark.parametrize("writes", [1, 9, 15, 22, 31])
def test_a_full_disk_leaves_nothing_that_looks_whole_and_the_same_command_goes_on(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    source = drawn_source(tmp_path / "source", 12)
    build(source, tmp_path / "whole")
    write, left = images.write_unflushed, iter(range(writes))

    def until_full(path: Path, data: bytes) -> None:
        if next(left, None) is None:
            path.write_bytes(data[: len(data) // 2])  # a file that is half there
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(images, "write_unflushed", until_full)
        with pytest.raises(OSError, match="No space left"):
            build(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    build(source, tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "whole")


@pytest.mark.usefixtures("_commits_at_once")
def test_another_source_or_other_options_are_refused_with_what_differs(build: Build, tmp_path: Path) -> None:
    source = drawn_source(tmp_path / "source", 12)

    def stopped(**options: Any) -> Refusal:
        with pytest.raises(Refusal) as refusal:
            build(source, tmp_path / "out", stop=lambda: True, **options)
        return refusal.value

    assert stopped().exit_code is ExitCode.STOPPED
    differing = stopped(answer_type="text")
    assert [fault.pointer for fault in differing.faults] == ["answer_type"]
    assert differing.exit_code is ExitCode.OUTPUT
    assert str(tmp_path / "out.building") in differing.faults[0].fix
    source.write_text(source.read_text() * 2)
    assert [fault.pointer for fault in stopped().faults] == ["files"]


def test_a_source_image_that_changes_between_the_passes_does_not_matter(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = drawn_source(tmp_path / "source", 12)
    build(source, tmp_path / "whole")
    take_in = intake.take_in

    def and_change(*args: Any, **more: Any) -> None:
        take_in(*args, **more)
        for path in (tmp_path / "source" / "images").iterdir():
            path.write_bytes(b"")

    monkeypatch.setattr("explicit_learning.data.build.building.take_in", and_change)
    build(source, tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "whole")


@pytest.mark.usefixtures("_commits_at_once")
def test_a_source_that_changes_while_it_is_read_is_refused(build: Build, tmp_path: Path) -> None:
    source = drawn_source(tmp_path / "source", 12)
    asked = []

    def and_append() -> bool:
        with source.open("a") as stream:
            asked.append(stream.write("\n"))
        return False

    with pytest.raises(Refusal) as refusal:
        build(source, tmp_path / "out", stop=and_append)
    assert "the file changed while it was read" in refusal.value.faults[0].found
    assert len(asked) < 5
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("step", ["remove", "fsync_folder"])
def test_an_end_between_the_name_and_the_clean_up_is_made_good(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    source = drawn_source(tmp_path / "source", 12)

    def killed(place: Path | BuildingFolder) -> None:
        if isinstance(place, BuildingFolder) or (tmp_path / "out").exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(BuildingFolder if step == "remove" else folder, step, killed)
        with pytest.raises(KeyboardInterrupt):
            build(source, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    assert (tmp_path / "out.building").exists()
    built = build(source, tmp_path / "out")
    assert (snapshot(tmp_path / "out"), built.items["slots"]) == (before, 6)
    assert not (tmp_path / "out.building").exists()


def test_a_folder_that_fills_up_meanwhile_is_refused_before_more_is_done(build: Build, tmp_path: Path) -> None:
    source = drawn_source(tmp_path / "source", 12)
    (tmp_path / "out.building").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(FileExistsError):
        build(source, tmp_path / "out")
    assert not (tmp_path / "out.building" / "dataset").exists()


def test_a_folder_with_something_in_it_is_left_alone(build: Build, tmp_path: Path) -> None:
    source = drawn_source(tmp_path / "source", 12)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(FileExistsError):
        build(source, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


# --- pictures and rows that belong together -----------------------------------------------------------------------


def side_of(folder: Path) -> dict[str, str]:
    return {row["group_id"]: row["part"] for row in rows_of(folder / "items.jsonl")}


def test_near_copies_are_on_one_side(build: Build, tmp_path: Path) -> None:
    rows = [drawn_row(index, tmp_path, 48) for index in range(12)]
    for index in range(6):  # saved again, at another size
        pixels, _, _ = drawn_picture(index, 48)
        larger = Image.fromarray(pixels).resize((72, 72), Image.Resampling.BICUBIC)
        larger.save(tmp_path / "images" / f"copy-{index}.jpg", quality=80)
        rows.append({**rows[index], "id": f"copy-{index}", "image": f"images/copy-{index}.jpg", "boxes": []})
    built = build(write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out")
    sides = side_of(tmp_path / "out")
    assert [sides[f"copy-{index}"] for index in range(6)] == [sides[f"row-{index:06d}"] for index in range(6)]
    assert (built.components, built.largest_components) == (12, (2, 2, 2, 2, 2))
    assert faults_of(tmp_path / "out") == []
    assert build(tmp_path / "rows.jsonl", tmp_path / "off", near_bits=None).components == 18


def test_one_component_that_leaves_no_split_is_refused_and_other_options_may_follow(
    build: Build, tmp_path: Path
) -> None:
    row = drawn_row(0, tmp_path, 48)
    questions = [{**row, "id": f"row-{index}", "question": f"Question {index}?"} for index in range(10)]
    source = write_jsonl(tmp_path / "rows.jsonl", questions)
    with pytest.raises(Refusal) as refusal:
        build(source, tmp_path / "out")
    (fault,) = refusal.value.faults
    assert (fault.pointer, fault.exit_code) == ("--split", ExitCode.CONTRACT)
    assert "no item for evaluation and sft: 10 items in 1 components, the largest of 10" in fault.found
    assert "12 of 256 bits" in fault.found
    everything = Shares(evaluation=Fraction(0), sft=Fraction(0))
    assert build(source, tmp_path / "out", shares=everything).items == {"evaluation": 0, "sft": 0, "slots": 10}
    assert faults_of(tmp_path / "out") == []


def test_rows_that_were_refused_are_told_where_a_part_stays_empty(build: Build, tmp_path: Path) -> None:
    rows = [drawn_row(index, tmp_path, 48) for index in range(4)]
    for row in rows[1:]:
        row["boxes"] = [[10, 10, 10, 20]]
    with pytest.raises(Refusal) as refusal:
        build(write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out")
    first, *others = refusal.value.faults
    assert "no item for evaluation and sft: 1 items" in first.found
    assert [(fault.gate, fault.pointer) for fault in others] == [("source", "boxes/0")] * 3


def test_a_picture_of_many_rows_is_one_file(build: Build, tmp_path: Path) -> None:
    rows = [drawn_row(index, tmp_path, 48) for index in range(10)]
    again = [{**row, "id": f"again-{row['id']}", "question": "Which one?", "boxes": []} for row in rows]
    build(write_jsonl(tmp_path / "rows.jsonl", rows + again), tmp_path / "out")
    answers = rows_of(tmp_path / "out" / "sft_answer.jsonl")
    by_group = {row["group_id"]: row["images"][0]["path"] for row in answers}
    assert all(by_group.get(f"again-{group}", path) == path for group, path in by_group.items())


def test_all_rows_that_contradict_each_other_are_refused(build: Build, tmp_path: Path) -> None:
    rows = [drawn_row(index, tmp_path, 48) for index in range(12)]
    with Image.open(tmp_path / rows[4]["image"]) as picture:
        picture.save(tmp_path / "images" / "other.bmp")  # another file that shows the same
    rows.append({**rows[4], "id": "other", "image": "images/other.bmp", "answer": "purple"})
    build(write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out")
    lines = refused(tmp_path / "out")
    assert [(line["id"], line["faults"][0]["field"]) for line in lines] == [
        ("row-000004", "answer"),
        ("other", "answer"),
    ]
    assert lines[0]["faults"][0]["found"] == f'"{rows[4]["answer"]}", but "purple" at {tmp_path}/rows.jsonl:13'
    assert faults_of(tmp_path / "out") == []


def test_a_row_without_a_name_that_says_the_same_twice_is_refused_once(build: Build, tmp_path: Path) -> None:
    rows = [drawn_row(index, tmp_path, 48) for index in range(12)]
    for row in rows:
        del row["id"]
    build(write_jsonl(tmp_path / "rows.jsonl", [*rows, rows[2]]), tmp_path / "out")
    (line,) = refused(tmp_path / "out")
    assert line["where"] == f"{tmp_path}/rows.jsonl:13"
    assert line["faults"][0]["found"] == f"the question, pictures and answer of {tmp_path}/rows.jsonl:3"
    assert all(row["group_id"].startswith("item-") for row in rows_of(tmp_path / "out" / "items.jsonl"))


def test_a_column_decides_and_may_not_put_a_picture_on_both_sides(build: Build, tmp_path: Path) -> None:
    rows = [drawn_row(index, tmp_path, 48) for index in range(12)]
    words = ["test", "train", "sft", "slots"] * 3
    rows = [{**row, "split": word} for row, word in zip(rows, words, strict=True)]
    built = build(write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out", split_column="split")
    sides = side_of(tmp_path / "out")
    expected = {"test": {"evaluation"}, "sft": {"sft"}, "slots": {"slots"}, "train": {"sft", "slots"}}
    assert all(sides[row["id"]] in expected[row["split"]] for row in rows)
    assert built.items["evaluation"] == 3
    assert faults_of(tmp_path / "out") == []

    rows.append({**rows[0], "id": "again", "question": "Where is it?", "split": "train"})
    with pytest.raises(Refusal) as refusal:
        build(write_jsonl(tmp_path / "crossing.jsonl", rows), tmp_path / "other", split_column="split")
    (fault,) = refusal.value.faults
    assert (fault.file, fault.pointer) == (f"{tmp_path}/crossing.jsonl:13", "split")
    assert fault.found.startswith(f"train, but {tmp_path}/crossing.jsonl:1 shares a picture with it")

    rows[-1]["split"] = "other"
    build(write_jsonl(tmp_path / "unknown.jsonl", rows), tmp_path / "third", split_column="split")
    assert [(line["id"], line["faults"][0]["found"]) for line in refused(tmp_path / "third")] == [("again", '"other"')]


def test_rows_that_the_source_holds_out_are_noted_where_they_are_trained_on(build: Build, tmp_path: Path) -> None:
    rows = [{**drawn_row(index, tmp_path, 48), "split": word} for index, word in enumerate(["test", "train"] * 6)]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    built = build(source, tmp_path / "out")
    sides = side_of(tmp_path / "out")
    trained = sum(row["split"] == "test" and sides[row["id"]] != "evaluation" for row in rows)
    assert trained > 0, "the shares hold out other rows than the source"
    assert built.told == {HELD_OUT: trained}
    assert build(source, tmp_path / "obeyed", split_column="split").told == {}


def test_strict_stops_with_every_row_that_cannot_be_used(build: Build, tmp_path: Path) -> None:
    rows = [drawn_row(index, tmp_path, 48) for index in range(12)]
    rows[3]["boxes"] = [[0, 0, 4800, 10]]
    (tmp_path / "images" / "7.png").write_bytes(b"no picture")
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(Refusal) as refusal:
        build(source, tmp_path / "out", strict=True)
    assert [(fault.file, fault.pointer) for fault in refusal.value.faults] == [
        (f"{source}:4", "boxes/0"),
        (f"{source}:8", "images/0"),
    ]
    assert build(source, tmp_path / "out").refused_rows == 2


def test_a_source_of_which_nothing_can_be_used_is_refused_with_its_rows(build: Build, tmp_path: Path) -> None:
    rows = [drawn_row(index, tmp_path, 48) | {"boxes": [[0, 0, 4800, 10]]} for index in range(3)]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(Refusal) as refusal:
        build(source, tmp_path / "out")
    assert [fault.file for fault in refusal.value.faults] == [f"{source}:{line}" for line in (1, 2, 3)]
    assert refusal.value.exit_code is ExitCode.CONTRACT


# --- views that another row forbids -------------------------------------------------------------------------------


def plain(tmp_path: Path, name: str, colour: str, *, grid: int = 7) -> dict[str, Any]:
    """Return a row with a box of a colour on a flat background with a grid of points."""
    pixels = np.full((64, 64, 3), 200, dtype=np.uint8)
    pixels[::grid, ::5] = 90
    pixels[10:24, 10:30] = COLOURS[colour]
    (tmp_path / "images").mkdir(exist_ok=True)
    Image.fromarray(pixels).save(tmp_path / "images" / f"{name}.png")
    image, boxes = f"images/{name}.png", [[10, 10, 30, 24]]
    return {"id": name, "image": image, "question": "Which colour?", "answer": colour, "boxes": boxes}


def test_views_that_contradict_another_row_are_left_out(build: Build, tmp_path: Path) -> None:
    rows = [plain(tmp_path, colour, colour) for colour in COLOURS]
    everything = Shares(evaluation=Fraction(0), sft=Fraction(0))
    # Each substitute shows what another row shows, to which that row gives the right answer: all of them agree.
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        row["substitute"] = {"image": other["image"], "answer": other["answer"]}
    built = build(write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out", shares=everything)
    assert built.relations["slots"]["SUBSTITUTE"] == 4
    assert faults_of(tmp_path / "out") == []
    # One that says something else than the row with this picture is left out; the row stays.
    rows[0]["substitute"]["answer"] = "violet"
    built = build(write_jsonl(tmp_path / "wrong.jsonl", rows), tmp_path / "other", shares=everything)
    assert built.left_out["SUBSTITUTE"] == {"another row shows the same with another answer": 1}
    assert built.relations["slots"]["SUBSTITUTE"] == 3
    assert faults_of(tmp_path / "other") == []


@pytest.mark.parametrize(
    ("splits", "reason"),
    [
        (("train", "train", "evaluation"), "evaluation shows the same"),
        (("evaluation", "evaluation", "train"), "training shows the same"),
    ],
)
def test_a_pasted_picture_that_the_other_side_shows_is_left_out(
    build: Build, tmp_path: Path, splits: tuple[str, str, str], reason: str
) -> None:
    # The blue box of the second row, pasted into the first one's picture, makes the third row's picture.
    rows = [
        plain(tmp_path, "red", "red"),
        plain(tmp_path, "blue-elsewhere", "blue", grid=9),
        plain(tmp_path, "blue", "blue"),
    ]
    rows = [row | {"split": split} for row, split in zip(rows, splits, strict=True)]
    built = build(
        write_jsonl(tmp_path / "rows.jsonl", rows),
        tmp_path / "out",
        split_column="split",
        near_bits=None,
        paste_substitutes=True,
        shares=Shares(evaluation=Fraction(1, 2), sft=Fraction(0)),
    )
    assert faults_of(tmp_path / "out") == []
    assert built.left_out["SUBSTITUTE"][reason] == 1
    left = {line["id"]: line["left_out"] for line in rows_of(tmp_path / "out" / "items.jsonl")}
    assert left["red"] == [{"relation": "SUBSTITUTE", "reason": reason}]
    assert left["blue-elsewhere"] == []
