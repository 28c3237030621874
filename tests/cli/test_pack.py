"""`el pack`: its answers, and a real run packed."""

from __future__ import annotations

import hashlib
import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from jsonschema import Draft202012Validator

from explicit_learning.cli import main
from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode
from explicit_learning.files.schema import load_schema
from explicit_learning.files.tree import FolderTree, tree_sha256
from explicit_learning.rundir import layout
from explicit_learning.verify.archive.tree import ArchiveTree
from tests.support.finished_run import Run, plan_document

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A complete run of two ranks, with its statement."""
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    run.checkpoint(3, run.sample())
    end = after_ranks(run.launch_manifest(), run.completed(run.reports(run.save_adapter())))
    assert end.exit_code == ExitCode.DONE
    return run.folder


def test_a_finished_run_is_packed(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.tar"
    assert main(["pack", str(finished), "-o", str(out)]) == ExitCode.DONE
    shown = capsys.readouterr()
    assert shown.out == f"{hashlib.sha256(out.read_bytes()).hexdigest()}  {out}\n"
    assert subprocess.run(["sha256sum", "--check"], input=shown.out, text=True, check=True, capture_output=True)
    archive, folder = ArchiveTree(out), FolderTree(finished)
    assert shown.err == f"packed {len(archive.files)} files, {out.stat().st_size:,} bytes\n"
    assert archive.files == {name: size for name, size in folder.files.items() if name != layout.LOCK}
    assert {name for name in archive.files if tree_sha256(archive, name) != tree_sha256(folder, name)} == set()


def test_an_artifact_says_what_its_manifests_are(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(finished), "-o", str(tmp_path / "artifact"), "--oci"]) == ExitCode.DONE
    shown = capsys.readouterr()
    sha256, place = shown.out.rstrip("\n").split("  ")
    assert place == f"{tmp_path}/artifact/blobs/sha256/{sha256}"
    index = json.loads((tmp_path / "artifact" / "index.json").read_bytes())
    run, _ = index["manifests"]
    assert shown.err.splitlines()[1:] == [
        f"tagged run: {run['digest']}",
        f"the statement is tagged {run['digest'].replace(':', '-')}.att",
    ]


def test_the_answer_is_one_object(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pack", str(finished), "-o", str(tmp_path / "run.tar"), "--json"]
    assert main(words) == ExitCode.DONE
    answer = json.loads(capsys.readouterr().out)
    assert answer["archive_sha256"] == hashlib.sha256((tmp_path / "run.tar").read_bytes()).hexdigest()
    assert answer | {"archive_sha256": ""} == {
        "ok": True,
        "exit_code": 0,
        "faults": [],
        "out": str(tmp_path / "run.tar"),
        "archive_sha256": "",
        "bytes": (tmp_path / "run.tar").stat().st_size,
        "files": len(ArchiveTree(tmp_path / "run.tar").files),
        "oci": None,
        "warnings": [],
    }
    assert main(words) == ExitCode.OUTPUT
    refused = json.loads(capsys.readouterr().out)
    assert [error.message for error in Draft202012Validator(load_schema("faults")).iter_errors(refused)] == []
    assert refused["faults"][0]["found"] == "something is there already"


def test_an_unfinished_run_is_packed_with_a_warning(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / layout.COMPLETION_MARKER).unlink()
    assert main(["pack", str(finished), "-o", str(tmp_path / "run.tar")]) == ExitCode.DONE
    assert capsys.readouterr().err.startswith(
        f"warning: {finished} has no training-complete.json: the run is not finished, and its archive shows it as it is"
    )


@pytest.mark.parametrize("words", [["RUN"], ["-o", "run.tar"], ["", "-o", "run.tar"], ["RUN", "-o", ""]])
def test_a_wrong_command_line_packs_nothing(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pack", *words]) == ExitCode.USAGE
    assert "usage: el pack" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
