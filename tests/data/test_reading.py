"""Rows that must be refused, each with file, line, pointer and what to do."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.reading import read_sft_rows, read_slot_rows
from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.files.jsonl import write_rows
from tests.support.dataset_builder import Builder, brief

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Json = dict[str, Any]
FULL, CONTROL, MISSING, SUBSTITUTE = range(4)
CHOICES = [{"key": "A", "text": "a circle"}, {"key": "B", "text": "a square"}]


@pytest.fixture
def good(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def slot_faults(good: Builder, split: Any = "train") -> tuple[Fault, ...]:
    path = good.folder / "rows.jsonl"
    write_rows(path, good.slots if split == "train" else good.evaluation)
    with pytest.raises(Refusal) as refusal:
        read_slot_rows(path, split=split)
    assert refusal.value.exit_code == ExitCode.CONTRACT
    assert all(fault.gate == "data" and fault.fix and fault.expected for fault in refusal.value.faults)
    return refusal.value.faults


def sft_faults(good: Builder) -> tuple[Fault, ...]:
    path = good.folder / "rows.jsonl"
    write_rows(path, good.sft)
    with pytest.raises(Refusal) as refusal:
        read_sft_rows(path)
    return refusal.value.faults


def test_a_good_file_is_read(good: Builder) -> None:
    write_rows(good.folder / "rows.jsonl", good.slots)
    rows = read_slot_rows(good.folder / "rows.jsonl")
    assert [row.target for row in rows] == ["7", "7", "", "3"]
    assert rows[MISSING].full_view.boxes[0].x1 == 8
    write_rows(good.folder / "sft.jsonl", good.sft)
    assert [row.target for row in read_sft_rows(good.folder / "sft.jsonl")] == ["7", "7", "", "3"]


def each_slot(field: str, value: Any) -> Callable[[Builder], None]:
    """Change a field in every slot of the group, so that the group agrees with itself."""

    def change(good: Builder) -> None:
        for slot in good.slots:
            slot[field] = copy.deepcopy(value)

    return change


def in_slot(index: int, *path: str | int, value: Any) -> Callable[[Builder], None]:
    """Change one place in one slot."""

    def change(good: Builder) -> None:
        node: Any = good.slots[index]
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = value

    return change


def in_full_views(*path: str | int, value: Any) -> Callable[[Builder], None]:
    """Change one place in the full view, wherever it stands."""

    def change(good: Builder) -> None:
        for view in [slot["full_view"] for slot in good.slots] + [good.slots[FULL]["selected_view"]]:
            node: Any = view
            for part in path[:-1]:
                node = node[part]
            node[path[-1]] = copy.deepcopy(value)

    return change


BOX = ("evidence", "boxes", 0)
BOXES = {"boxes": [{"image_index": 0, "x0": 0, "y0": 0, "x1": 1, "y1": 1}]}


@pytest.mark.parametrize(
    ("change", "line", "pointer", "found", "fix"),
    [
        (in_slot(FULL, "split", value="eval"), 1, "/split", 'evaluation leakage: split "eval"', "remove the row"),
        (in_slot(FULL, "split", value="evaluation"), 1, "/split", "evaluation leakage", "remove the row"),
        (in_slot(MISSING, "relation", value="missing"), 3, "/relation", '"missing"', "MISSING"),
        (in_slot(CONTROL, "schema_version", value=1), 2, "/schema_version", "1", "2"),
        (in_slot(CONTROL, "question", value="x" * 50_000), 2, "/question", "50002 characters", "write a value"),
        (in_slot(CONTROL, "question", value="x" * 50_000), 2, "/question", "train-0.control", "write a value"),
        (in_slot(CONTROL, "full_answer", value="e\u0301" * 33), 2, "/full_answer", "66 code points", "write a value"),
        (in_slot(CONTROL, "full_answer", value="8"), 2, "/full_answer", '"8" in a CONTROL slot, but "7"', "SUBSTITUTE"),
        (each_slot("full_answer", "a<b"), 1, "/full_answer", "a response cannot hold", "shorten or reword"),
        (each_slot("full_answer", "a\u2028b"), 1, "/full_answer", "a response cannot hold", "shorten or reword"),
        (each_slot("full_answer", "7\u200b"), 1, "/full_answer", '"7\\u200b" with U+200B (ZERO WIDTH SPACE)', "typing"),
        (each_slot("full_answer", "\ufeff7"), 1, "/full_answer", '"\\ufeff7" with U+FEFF', "typing the text again"),
        (each_slot("full_answer", "\u202e7"), 1, "/full_answer", "U+202E (RIGHT-TO-LEFT OVERRIDE)", "invisible"),
        (each_slot("full_answer", "seven"), 1, "/full_answer", "not a number", "bare number"),
        (each_slot("full_answer", ""), 3, "/full_answer", "abstention beside a MISSING view", "drop the slot"),
        (in_slot(SUBSTITUTE, "substitute_answer", value="7.0"), 4, "/substitute_answer", "equals the full", "CONTROL"),
        (in_slot(SUBSTITUTE, "substitute_answer", value=""), 4, "/substitute_answer", '""', "write a value"),
        (in_slot(FULL, "substitute_answer", value="4"), 1, "/substitute_answer", "no SUBSTITUTE slot", "agree"),
        (in_slot(SUBSTITUTE, "question", value="Why?"), 4, "/question", "another question", "make them agree"),
        (in_slot(SUBSTITUTE, "base_id", value="b"), 4, "/base_id", "another base_id", "make them agree"),
        (in_slot(CONTROL, "full_view", "state", value="s"), 2, "/full_view", "another full_view", "make them agree"),
        (in_slot(CONTROL, "full_view", "role", value="CONTROL"), 2, "/full_view/role", "CONTROL", "original view"),
        (
            in_slot(CONTROL, "selected_view", "evidence", value=BOXES),
            2,
            "/selected_view/evidence",
            "on a CONTROL view",
            "remove",
        ),
        (in_slot(CONTROL, "selected_view", "role", value="MISSING"), 2, "/selected_view/role", "MISSING in", "agree"),
        (
            in_slot(CONTROL, "selected_view", "view_id", value="full"),
            2,
            "/selected_view/view_id",
            "full view's",
            "rename",
        ),
        (
            in_slot(FULL, "selected_view", "state", value="other"),
            1,
            "/selected_view",
            "another view",
            "repeat full_view",
        ),
        (each_slot("question", " \n"), 1, "/question", "blank", "write the question"),
        (
            in_slot(CONTROL, "selected_view", "images", 0, "image_index", value=1),
            2,
            "/selected_view/images/0/image_index",
            "1",
            "number the images from 0",
        ),
        (
            in_slot(CONTROL, "selected_view", "images", value=[]),
            2,
            "/selected_view/images",
            "[]",
            "write a value",
        ),
        (in_full_views(*BOX, "x1", value=9), 1, "/full_view/evidence/boxes/0/x1", "8 by 6 pixels", "after EXIF"),
        (in_full_views(*BOX, "y1", value=7), 1, "/full_view/evidence/boxes/0/y1", "y1 = 7", "after EXIF"),
        (in_full_views(*BOX, "x0", value=8), 1, "/full_view/evidence/boxes/0/x1", "an empty box", "cover"),
        (
            in_full_views(*BOX, "image_index", value=1),
            1,
            "/full_view/evidence/boxes/0/image_index",
            "image 1",
            "same view",
        ),
        (in_full_views("evidence", value={"boxes": []}), 1, "/full_view/evidence/boxes", "[]", "write a value"),
        (each_slot("answer_type", "choice"), 1, "/choices", "[]", "write a value"),
        (each_slot("choices", [*CHOICES, {"key": "a", "text": "c"}]), 1, "/choices/2/key", "choice 0 has", "rename"),
        (
            each_slot("choices", [*CHOICES, {"key": "C", "text": "A Circle!"}]),
            1,
            "/choices/2/text",
            "choice 0",
            "remove",
        ),
        (
            each_slot("choices", [*CHOICES, {"key": "C", "text": "b"}]),
            1,
            "/choices/2/text",
            "key of choice 1",
            "A, B, C",
        ),
        (each_slot("choices", [*CHOICES, {"key": "C", "text": "c\nd"}]), 1, "/choices/2/text", "c\\nd", "one line"),
        (each_slot("choices", [*CHOICES, {"key": "C", "text": "c\u2060"}]), 1, "/choices/2/text", "U+2060", "typing"),
    ],
)
def test_a_slot_that_breaks_a_rule(  # noqa: PLR0917 - pytest passes by name
    good: Builder, change: Callable[[Builder], None], line: int, pointer: str, found: str, fix: str
) -> None:
    change(good)
    faults = slot_faults(good)
    mine = [fault for fault in faults if brief([fault]) == [(f"rows.jsonl:{line}", pointer)]]
    assert mine, faults
    assert any(found in fault.found and fix in fault.fix for fault in mine), mine


UNSAFE = {
    "../secret.png": "'..', which can lead outside",
    "images/../../secret.png": "'..', which can lead outside",
    "/etc/passwd": "an absolute path",
    "images\\a.png": "a backslash",
    "C:/a.png": "a drive letter",
    "https://example.org/a.png": "a URL",
    "file:///a.png": "a URL",
    "data:image/png;base64,iVBORw0KGgo=": "a URL",
    "images//a.png": "an empty part",
    "./a.png": "an empty part or '.'",
    "a\u0007.png": "unprintable",
}


@pytest.mark.parametrize(("path", "found"), UNSAFE.items())
def test_an_unsafe_image_path(good: Builder, path: str, found: str) -> None:
    good.slots[CONTROL]["selected_view"]["images"][0]["path"] = path
    (fault,) = slot_faults(good)
    assert brief([fault]) == [("rows.jsonl:2", "/selected_view/images/0/path")]
    assert found in fault.found
    assert fault.fix
    good.sft[CONTROL]["images"][0]["path"] = path
    (fault,) = sft_faults(good)
    assert brief([fault]) == [("rows.jsonl:2", "/images/0/path")]


def test_masks(good: Builder) -> None:
    mask = {"image_index": 0, "path": "../m.png", "sha256": "0" * 64}
    in_full_views(
        "evidence", value={"masks": [mask, mask | {"path": "m.png"}, mask | {"image_index": 1, "path": "n"}]}
    )(good)
    at = "/full_view/evidence/masks"
    expected = [f"{at}/0/path", f"{at}/1/image_index", f"{at}/2/image_index"]
    assert brief(slot_faults(good)) == [(f"rows.jsonl:{line}", at) for line in (1, 2, 3, 4) for at in expected]
    assert {fault.found for fault in slot_faults(good)} >= {"a second mask for image 0 (train-0.full)"}


def test_boxes_and_masks_exclude_each_other(good: Builder) -> None:
    mask = {"image_index": 0, "path": "m.png", "sha256": "0" * 64}
    in_full_views("evidence", "masks", value=[mask])(good)
    assert brief(slot_faults(good))[0] == ("rows.jsonl:1", "/full_view/evidence")


def test_a_group_without_full(good: Builder) -> None:
    del good.slots[FULL]
    (fault,) = slot_faults(good)
    assert brief([fault]) == [("rows.jsonl:1", "/relation")]
    assert fault.found == 'group "train-0" without a FULL slot (it has CONTROL, MISSING, SUBSTITUTE)'
    assert "add the slot" in fault.fix


def test_a_group_with_two_fulls(good: Builder) -> None:
    second = copy.deepcopy(good.slots[FULL])
    second["slot_id"] = "train-0.full-2"
    good.slots.append(second)
    faults = slot_faults(good)
    assert brief(faults) == [("rows.jsonl:5", "/selected_view/view_id"), ("rows.jsonl:5", "/relation")]
    assert "a second FULL slot" in faults[1].found
    assert "rows.jsonl:1" in faults[1].found


def test_a_slot_twice(good: Builder) -> None:
    good.slots.append(copy.deepcopy(good.slots[CONTROL]))
    faults = slot_faults(good)
    assert brief(faults) == [("rows.jsonl:5", "/slot_id"), ("rows.jsonl:5", "/selected_view/view_id")]
    assert "again, after" in faults[0].found


def test_substitute_without_its_answer(good: Builder) -> None:
    del good.slots[SUBSTITUTE]["substitute_answer"]
    (fault,) = slot_faults(good)
    assert brief([fault]) == [("rows.jsonl:4", "/substitute_answer")]
    assert (fault.found, fault.fix) == ("nothing (train-0.substitute)", "add the field 'substitute_answer'")


def test_a_misspelt_field_is_named_with_its_neighbour(good: Builder) -> None:
    good.slots[CONTROL]["full_anwser"] = good.slots[CONTROL].pop("full_answer")
    (fault,) = [fault for fault in slot_faults(good) if fault.pointer == "/full_anwser"]
    assert fault.fix == "write 'full_answer', if you meant that"


def test_a_training_row_among_held_out_ones(good: Builder) -> None:
    good.evaluation[MISSING]["split"] = "train"
    (fault,) = slot_faults(good, "evaluation")
    assert brief([fault]) == [("rows.jsonl:3", "/split")]
    assert "leakage" not in fault.found
    assert "training file" in fault.fix


@pytest.mark.parametrize(
    ("index", "change", "pointer", "found"),
    [
        (FULL, {"split": "eval"}, "/split", "evaluation leakage"),
        (FULL, {"assistant_response": "<answer>8</answer>"}, "/assistant_response", 'a response with the answer "8"'),
        (
            FULL,
            {"assistant_response": "<answer>7.0</answer>"},
            "/assistant_response",
            'a response with the answer "7.0"',
        ),
        (FULL, {"assistant_response": "<answer>7</answer>\n"}, "/assistant_response", "trailing white space"),
        (FULL, {"assistant_response": "It is <answer>7</answer>"}, "/assistant_response", "text_outside"),
        (FULL, {"assistant_response": "7"}, "/assistant_response", "no_block"),
        (MISSING, {"target": "7", "assistant_response": "<answer>7</answer>"}, "/target", '"7"'),
        (CONTROL, {"target": "8", "assistant_response": "<answer>8</answer>"}, "/target", '"8" for CONTROL'),
        (SUBSTITUTE, {"target": "7", "assistant_response": "<answer>7</answer>"}, "/target", "which is FULL's answer"),
        (SUBSTITUTE, {"target": "", "assistant_response": "<answer></answer>"}, "/target", "an abstention for SUBST"),
        (FULL, {"target": "<", "assistant_response": "<answer><</answer>"}, "/target", "a response cannot hold"),
        (FULL, {"target": "7\u200f", "assistant_response": "<answer>7\u200f</answer>"}, "/target", "U+200F"),
        (FULL, {"target": "x", "assistant_response": "<answer>x</answer>"}, "/target", "not a number"),
        (MISSING, {"record_kind": "sft_answer"}, "/relation", '"MISSING"'),
        (CONTROL, {"view_id": "full"}, "/view_id", 'view "full" of group "train-0" again'),
        (CONTROL, {"record_id": "train-0.full.sft"}, "/record_id", "again"),
    ],
)
def test_a_certificate_that_breaks_a_rule(good: Builder, index: int, change: Json, pointer: str, found: str) -> None:
    good.sft[index] |= change
    faults = sft_faults(good)
    mine = [fault for fault in faults if brief([fault]) == [(f"rows.jsonl:{index + 1}", pointer)]]
    assert any(found in fault.found and fault.fix for fault in mine), faults


def test_a_second_full_view_among_certificates(good: Builder) -> None:
    good.sft[CONTROL]["relation"] = "FULL"
    (fault,) = sft_faults(good)
    assert brief([fault]) == [("rows.jsonl:2", "/relation")]
    assert "a second FULL view" in fault.found


def test_all_faults_of_all_lines_are_collected(good: Builder) -> None:
    path = good.folder / "rows.jsonl"
    lines = [json.dumps(slot) for slot in good.slots]
    lines[CONTROL] = "{not json"
    lines[MISSING] = lines[MISSING][:-1] + ', "split": "train"}'
    bad = good.slots[SUBSTITUTE] | {"relation": 7, "answer_type": "colour"}
    path.write_text("\n".join([*lines[:3], json.dumps(bad), "", "[]", '"\\ud800"']) + "\n")
    with pytest.raises(Refusal) as refusal:
        read_slot_rows(path)
    assert list(dict.fromkeys(brief(refusal.value.faults))) == [
        ("rows.jsonl:2", ""),
        ("rows.jsonl:3", ""),
        ("rows.jsonl:4", "/answer_type"),
        ("rows.jsonl:4", "/relation"),
        ("rows.jsonl:5", ""),
        ("rows.jsonl:6", ""),
        ("rows.jsonl:7", ""),
    ]
    assert "duplicate key" in refusal.value.faults[1].found


def test_a_truncated_file(good: Builder) -> None:
    path = good.folder / "rows.jsonl"
    write_rows(path, good.slots)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Refusal) as refusal:
        read_slot_rows(path)
    assert brief(refusal.value.faults) == [("rows.jsonl:4", "")]
    assert "truncated" in refusal.value.faults[0].fix


def test_a_thousand_bad_rows_are_counted_and_a_hundred_explained(good: Builder) -> None:
    bad = good.slots[CONTROL] | {"split": "eval"}
    good.slots = [bad] * 1_000
    faults = slot_faults(good)
    assert len(faults) == 101
    assert faults[-1].found == "at least 900 more faults"
