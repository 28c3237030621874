"""`el data show`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from explicit_learning.cli import main
from explicit_learning.errors import ExitCode
from explicit_learning.files.jsonl import write_rows
from explicit_learning.files.resources import ASSETS
from explicit_learning.files.schema import load_schema
from tests.support.shown_data import shown_dataset

if TYPE_CHECKING:
    from pathlib import Path

MODEL = str(ASSETS / "tiny-vlm" / "model")


def answer_of(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = main(["data", "show", *map(str, words), "--json"])
    value = json.loads(capsys.readouterr().out)
    assert list(Draft202012Validator(load_schema("faults")).iter_errors(value)) == []
    return code, value


def test_figures_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = shown_dataset(tmp_path)
    built.evaluation[2]["selected_view"]["state"] = "blurred"
    manifest = built.write()
    row = {"where": "a.csv:3", "id": "q3", "faults": [{"field": "answer", "found": "<b>", "expected": "plain text"}]}
    write_rows(tmp_path / "refused.jsonl", [row])
    assert main(["data", "show", str(tmp_path), "--model", MODEL]) == ExitCode.DONE
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    identity = json.loads(manifest.read_text())
    assert lines[0].startswith(f"{identity['dataset']}, made by tests; identity ")
    for line in (
        "slots.jsonl 4 1 1 1 1 1 number 4 boxes 1",
        "evaluation, split evaluation",
        'slots.jsonl number 1 1 100 % "7" 1',
        "width 20 / 20 / 20, height 10 / 10 / 10 pixels (smallest / median / largest)",
        "most frequent sizes: 20 × 10 (8)",
        '"blurred": 0 rows to train on, 1 held out, unseen in training',
        '"missing": 1 rows to train on, 0 held out',
        "rows left out of the source: 1",
        "1 × answer: expected plain text",
        "a.csv:3 (q3): found <b>",
    ):
        assert line in lines


def test_answers_that_look_like_markup_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = shown_dataset(tmp_path)
    for row in built.slots:
        row |= {"answer_type": "text", "full_answer": "[red]:smile:[/red]"}
        row.pop("substitute_answer", None)
    built.slots = built.slots[:3]
    built.write()
    assert main(["data", "show", str(tmp_path)]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert '"[red]:smile:[/red]" 1' in shown
    assert "\x1b" not in shown


def test_the_answer_to_programs_holds_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown_dataset(tmp_path).write()
    sheet = tmp_path / "sheet.html"
    code, value = answer_of(capsys, tmp_path, "--sheet", sheet, "--model", MODEL, "--max-image-tokens", 64)
    assert (code, value["ok"], value["model"], value["max_image_tokens"]) == (ExitCode.DONE, True, MODEL, 64)
    assert list(Draft202012Validator(load_schema("data-summary")).iter_errors(value["summary"])) == []
    assert [file["rows"] for file in value["summary"]["files"]] == [4, 4]
    assert len(value["summary"]["warnings"]) == 1
    size = sheet.stat().st_size
    assert value["sheet"] == {"file": str(sheet), "groups": 2, "views": 8, "bytes": size, "remarks": []}


def test_warnings_and_the_sheet_are_named_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown_dataset(tmp_path, changes={"missing": (0, 0, 0, 0)}).write()
    sheet = tmp_path / "sheet.png"
    assert main(["data", "show", str(tmp_path), "--sheet", str(sheet), "--groups", "1"]) == ExitCode.DONE
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"warning: {tmp_path} training has seen every removal operator of the evaluation")
    assert lines[1:] == [
        (
            f'warning: {tmp_path} "train-0", row "train-0.missing": this MISSING view shows exactly the pixels of the '
            "FULL view"
        ),
        f"wrote {sheet} (groups: 1, views: 4, {sheet.stat().st_size / 1e6:.1f} MB)",
    ]


def test_a_damaged_image_ends_with_65_after_the_sheet_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown_dataset(tmp_path).write()
    (tmp_path / "images" / "train-0-full.png").write_bytes(b"\x89PNG")
    code, value = answer_of(capsys, tmp_path, "--sheet", tmp_path / "sheet.html")
    assert (code, value["sheet"]["views"]) == (ExitCode.CONTRACT, 8)
    assert [fault["file"] for fault in value["faults"]] == [str(tmp_path / "images" / "train-0-full.png")]
    assert (tmp_path / "sheet.html").is_file()


def test_what_is_not_a_dataset_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for name, found in (
        (".", "a folder without dataset-manifest.json"),
        ("file", "a file"),
        ("nothing", "no such folder"),
    ):
        code, value = answer_of(capsys, tmp_path / name)
        assert (code, value["faults"][0]["found"]) == (ExitCode.CONTRACT, found)
        assert value["faults"][0]["fix"] == "name a folder that `el data digits` or `el data build` has made"
    (tmp_path / "dataset-manifest.json").write_text("{}")
    code, value = answer_of(capsys, tmp_path)
    assert (code, value["faults"][0]["file"]) == (ExitCode.CONTRACT, str(tmp_path / "dataset-manifest.json"))


@pytest.mark.parametrize(
    "words",
    [
        ("--max-image-tokens", "64"),
        ("--max-image-tokens", "0", "--model", MODEL),
        ("--groups", "0"),
        ("--seed", "-1"),
        ("--sheet", "sheet.pdf"),
        ("--sheet", "sheet.png", "--groups", "65"),
    ],
)
def test_a_wrong_command_line_ends_with_64(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown_dataset(tmp_path).write()
    code, _ = answer_of(capsys, tmp_path, *words)
    assert code == ExitCode.USAGE


def test_a_sheet_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown_dataset(tmp_path).write()
    sheet = tmp_path / "sheet.html"
    sheet.write_text("kept")
    code, value = answer_of(capsys, tmp_path, "--sheet", sheet)
    assert (code, value["faults"][0]["found"]) == (ExitCode.OUTPUT, "something is there already")
    assert sheet.read_text() == "kept"
