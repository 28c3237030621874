"""`el diff`: damaged runs are refused by name, and the answer is text for people or JSON for programs."""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.cli import main
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.schema import validate
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.verify.diff.comparison import Diff, diff_runs
from explicit_learning.verify.diff.text import diff_text
from explicit_learning.verify.opening import open_run
from tests.support.compared_runs import (
    ADAPTER,
    TRACE,
    change_line,
    complete,
    diff,
    differing,
)
from tests.support.finished_run import Run, plan_document
from tests.support.machines import MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A complete run, which no test changes."""
    return complete(tmp_path_factory.mktemp("runs") / "whole")


@pytest.mark.parametrize(
    ("damage", "file", "pointer"),
    [
        (lambda run: change_line(run, "metrics.jsonl", 2, step=1), "metrics.jsonl:2", "/step"),
        (lambda run: change_line(run, "metrics.jsonl", 2, step=None), "metrics.jsonl:2", "/step"),
        (lambda run: change_line(run, "metrics.jsonl", 2, loss=True), "metrics.jsonl:2", "/loss"),
        (lambda run: change_line(run, "metrics.jsonl", 2, loss=[1]), "metrics.jsonl:2", "/loss"),
        (lambda run: (run.folder / "metrics.jsonl").unlink(), "metrics.jsonl", None),
        (lambda run: change_line(run, TRACE, 3, valid=None), f"{TRACE}:3", "/valid"),
        (lambda run: change_line(run, TRACE, 1, run_id="other"), f"{TRACE}:1", "/run_id"),
        (lambda run: (run.folder / TRACE).unlink(), TRACE, None),
        (lambda run: (run.folder / ADAPTER).write_bytes(b"short"), ADAPTER, None),
        (lambda run: (run.folder / ADAPTER).unlink(), ADAPTER, None),
        (lambda run: (run.folder / "plan.json").write_text("[]"), "plan.json", None),
        (lambda run: (run.folder / "training-complete.json").write_text("{"), "training-complete.json", None),
        (lambda run: (run.folder / "training-complete.json").unlink(), "training-complete.json", None),
        (lambda run: (run.folder / "run-manifest.json").write_text("[]"), "run-manifest.json", ""),
        (lambda run: (run.folder / "launches" / "launch-1.json").unlink(), "launches", None),
        (lambda run: (run.folder / "launches" / "launch-1.json").write_text("{}"), "launches/launch-1.json", ""),
    ],
)
def test_a_damaged_file_is_refused_by_name(
    whole: Run, tmp_path: Path, damage: Callable[[Run], Any], file: str, pointer: str
) -> None:
    a, b = whole, replace(whole, folder=shutil.copytree(whole.folder, tmp_path / "b"))
    damage(b)
    for pair in ((a, b), (b, a)):
        with pytest.raises(Refusal) as refusal:
            diff(*pair)
        fault = refusal.value.faults[0]
        assert (fault.file, refusal.value.exit_code) == (str(b.folder / file), ExitCode.CONTRACT)
        if pointer is not None:
            assert fault.pointer == pointer


def test_the_command_answers_with_0_whether_runs_differ_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = complete(tmp_path / "a"), complete(tmp_path / "b", plan_document(seed=11))
    change_line(b, "metrics.jsonl", 2, loss=0.1)
    capsys.readouterr()
    for one, other, identical in ((a, a, True), (a, b, False)):
        assert main(["diff", str(one.folder), str(other.folder), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["ok"], answer["faults"], answer["identical"]) == (True, [], identical)
        assert answer["diff"]["identical"] is identical
        assert validate(answer, "faults", gate="test", file="answer") == []
        assert validate(answer["diff"], "diff", gate="test", file="answer") == []
    assert main(["diff", str(a.folder), str(b.folder)]) == 0
    out = capsys.readouterr().out
    assert "different from step 2 on:\n    metrics.jsonl:2\n        loss: A 0.5, B 0.1\n" in out
    assert "    /seed: A 0, B 11\n" in out


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_what_is_no_run_is_refused(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("")
    elif kind == "empty":
        path.mkdir()
    code = main(["diff", str(path), str(path), "--json"])
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert code == ExitCode.CONTRACT
    assert fault["file"] == str(path / "run-manifest.json" if kind == "empty" else path)


def test_an_archive_is_read_as_its_folder_is(tmp_path: Path) -> None:
    a = complete(tmp_path / "a")
    with tarfile.open(tmp_path / "run.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in a.folder.rglob("*") if path.is_file()):
            archive.add(path, path.relative_to(a.folder).as_posix())
    found = diff_runs(FolderTree(a.folder), open_run(tmp_path / "run.tar"))
    assert found.identical
    assert {each.file: each.rows for each in found.computed.files}[ADAPTER] == 1
    assert found.b.place == str(tmp_path / "run.tar")


def test_many_differences_are_shortened_in_text_and_whole_in_json(tmp_path: Path) -> None:
    libraries = {f"package-{number:03d}": "1" for number in range(300)}
    platform = replace(MACHINE.platform, libraries=MACHINE.platform.libraries | libraries)
    a, b = complete(tmp_path / "a"), complete(tmp_path / "b", machine=replace(MACHINE, platform=platform))
    found = diff(a, b)
    assert len(differing(found, "packages")) == 300
    text = diff_text(found)
    assert "packages: 300 of 303 different\n    /platform/libraries/package-000: A nothing, B 1\n" in text
    assert "    and 292 more (--json has all)\n" in text
    assert len(text.splitlines()) < 80


def test_the_golden_example_is_an_answer() -> None:
    example = json.loads((SCHEMAS / "examples" / "diff.json").read_text())
    found = from_json(Diff, example)
    assert to_json(found) == example
    assert "different from step 1 on:\n    accounting/rank-0/trace.jsonl:10" in diff_text(found)
