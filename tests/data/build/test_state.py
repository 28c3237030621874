"""The record of a build: whole transactions, one build at a time, and refusals that say what to do."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.build.folder import BuildingFolder
from explicit_learning.data.build.state import State
from explicit_learning.errors import ExitCode, Refusal

if TYPE_CHECKING:
    from pathlib import Path


def test_a_transaction_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    with state.transaction():
        state.set("a", 1)
    with pytest.raises(ZeroDivisionError), state.transaction():
        state.set("a", 1 / 0)
    state.close()
    again = State(tmp_path / "state.sqlite")
    assert (again.get("a"), again.get("b")) == (1, None)
    again.close()


def test_a_kill_inside_a_transaction_undoes_it(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from explicit_learning.data.build.state import State
state = State(Path(sys.argv[1]))
with state.transaction():
    state.set("rows", 1)
with state.transaction():
    for number in range(20_000):  # more than fits into the cache
        state.set(f"row {number}", "x" * 4000)
    os._exit(9)
"""
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "state.sqlite")], check=False)
    assert ended.returncode == 9
    state = State(tmp_path / "state.sqlite")
    assert (state.get("rows"), state.count("SELECT COUNT(*) FROM about")) == (1, 1)
    state.close()


def test_a_second_build_of_a_folder_is_refused(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    with pytest.raises(Refusal) as refusal:
        State(tmp_path / "state.sqlite")
    state.close()
    assert "another build is at work" in refusal.value.faults[0].found
    assert refusal.value.exit_code is ExitCode.OUTPUT


def test_a_damaged_record_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(Refusal) as refusal:
        State(tmp_path / "state.sqlite")
    (fault,) = refusal.value.faults
    assert (fault.exit_code, fault.fix) == (ExitCode.IO, f"remove {tmp_path}, and run the same command again")


def test_a_full_disk_is_a_refusal_and_leaves_the_last_transaction(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    with state.transaction():
        state.set("rows", 1)
    pages = state.count("PRAGMA page_count")
    state.run(f"PRAGMA max_page_count = {pages + 5}")
    rows = [("rows", "2"), ("much", "x" * 1_000_000)]
    with pytest.raises(Refusal) as refusal, state.transaction():
        state.run_many("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)
    (fault,) = refusal.value.faults
    assert fault.exit_code is ExitCode.IO
    assert "free some space" in fault.fix
    assert state.get("rows") == 1
    state.close()


def test_what_a_build_depends_on_is_compared(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    state.bind("taking", {"seed": 0, "files": [{"sha256": "a"}]})
    state.bind("taking", {"seed": 0, "files": [{"sha256": "a"}]})
    with pytest.raises(Refusal) as refusal:
        state.bind("taking", {"seed": 1, "files": [{"sha256": "a"}], "form": "csv"})
    state.close()
    assert [(fault.pointer, fault.found, fault.expected) for fault in refusal.value.faults] == [
        ("form", "null, with which this build began", '"csv", as asked for now'),
        ("seed", "0, with which this build began", "1, as asked for now"),
    ]


def test_what_is_not_noted_is_removed_and_what_is_noted_must_be_there(tmp_path: Path) -> None:
    folder = BuildingFolder(tmp_path / "out")
    kept, torn = folder.root / "images" / "kept.png", folder.root / "images" / "torn.png"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"12345")
    torn.write_bytes(b"1")
    folder.state.run("INSERT INTO files (path, sha256, bytes, width, height) VALUES ('images/kept.png', '', 5, 1, 1)")
    folder.prepare()
    assert (kept.exists(), torn.exists()) == (True, False)
    kept.write_bytes(b"123")
    with pytest.raises(Refusal) as refusal:
        folder.prepare()
    folder.close()
    assert (refusal.value.faults[0].file, refusal.value.faults[0].found) == (str(kept), "3 bytes")


def test_the_record_is_one_plain_file_while_nobody_has_it_open(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    with state.transaction():
        state.set("a", [1])
    state.close()
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_size] == ["state.sqlite"]
    with sqlite3.connect(tmp_path / "state.sqlite") as plain:
        assert json.loads(plain.execute("SELECT value FROM about WHERE name = 'a'").fetchone()[0]) == [1]
    plain.close()
