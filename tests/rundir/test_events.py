"""The event log: lines in order, whole whatever happened to the one before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.regular import NotRegularError
from explicit_learning.files.resources import ROOT
from explicit_learning.files.schema import validate
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import to_json
from explicit_learning.rundir.events import (
    Event,
    GatesRecord,
    append_event,
    gates_records,
    read_events,
)

if TYPE_CHECKING:
    from pathlib import Path

AT = datetime(2026, 1, 31, 13, 0, 0, 5, tzinfo=timezone(timedelta(hours=1)))


def test_bytes_are_known(tmp_path: Path) -> None:
    append_event(tmp_path, "resume", {"launch_id": "n1", "checkpoint": None}, at=AT)
    line = b'{"data":{"checkpoint":null,"launch_id":"n1"},"kind":"resume","time":"2026-01-31T12:00:00.000005Z"}\n'
    assert (tmp_path / "events.jsonl").read_bytes() == line
    assert validate(json.loads(line), "event", gate="test", file="events.jsonl") == []


def test_now_is_the_default(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    append_event(tmp_path, "resume", {})
    ((event,), torn) = read_events(FolderTree(tmp_path))
    assert torn == 0
    assert before <= datetime.fromisoformat(event.time) <= datetime.now(UTC)


def test_a_pipe_in_place_of_the_log_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(NotRegularError, match="a pipe"):
        append_event(tmp_path, "resume", {})
    with pytest.raises(NotRegularError, match="a pipe"):
        read_events(FolderTree(tmp_path))


def test_no_file_means_no_events(tmp_path: Path) -> None:
    assert read_events(FolderTree(tmp_path)) == ([], 0)


def test_a_line_torn_at_any_byte_costs_only_itself(tmp_path: Path) -> None:
    append_event(tmp_path, "resume", {"n": 1}, at=AT)
    first = (tmp_path / "events.jsonl").read_bytes()
    append_event(tmp_path, "checkpoint", {"n": 2}, at=AT)
    whole = (tmp_path / "events.jsonl").read_bytes()
    for length in range(len(first), len(whole) + 1):
        (tmp_path / "events.jsonl").write_bytes(whole[:length])
        append_event(tmp_path, "finalise", {"n": 3}, at=AT)
        events, torn = read_events(FolderTree(tmp_path))
        kept = length >= len(whole) - 1  # without its newline only, a line is still whole
        assert [event.data["n"] for event in events] == ([1, 2, 3] if kept else [1, 3])
        assert torn == (0 if kept or length == len(first) else 1)


def test_lines_that_are_not_events_are_counted(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'[]\n{"time": 1}\n\xff\n')
    assert read_events(FolderTree(tmp_path)) == ([], 3)


def test_an_event_that_breaks_its_schema_is_refused_and_not_written(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="/kind") as refusal:
        append_event(tmp_path, "signal", {})  # type: ignore[arg-type] # the point of the test
    assert refusal.value.exit_code == ExitCode.INTERNAL
    assert not (tmp_path / "events.jsonl").exists()


def test_an_event_of_an_unknown_kind_is_counted_and_left_out(tmp_path: Path) -> None:
    append_event(tmp_path, "resume", {}, at=AT)
    line = (tmp_path / "events.jsonl").read_text()
    (tmp_path / "events.jsonl").write_text(line.replace("resume", "signal") + line)
    assert read_events(FolderTree(tmp_path)) == ([Event(time="2026-01-31T12:00:00.000005Z", kind="resume", data={})], 1)


GATES = GatesRecord(launch_id="n1", plan_file="/plan.json", file_system=("no flock",))


def test_what_the_program_reads_again_comes_back_typed(tmp_path: Path) -> None:
    append_event(tmp_path, "gates", GATES)
    append_event(tmp_path, "exit", {"launch_id": "n1", "exit_code": 75})
    events, skipped = read_events(FolderTree(tmp_path))
    assert gates_records(events) == [GATES]
    assert skipped == 0


@pytest.mark.parametrize(
    "changes", [{"plan_file": ["/plan.json"]}, {"cpus": 8}, {"not_removed": 3}, {"file_system": [5]}]
)
def test_details_that_break_their_schema_are_not_written_and_not_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    data = to_json(GATES) | changes
    with pytest.raises(Refusal, match=f"/data/{next(iter(changes))}") as refusal:
        append_event(tmp_path, "gates", data)
    assert refusal.value.exit_code == ExitCode.INTERNAL
    line = {"time": "2026-01-31T12:00:00.000005Z", "kind": "gates", "data": data}
    (tmp_path / "events.jsonl").write_text(json.dumps(line) + "\n")
    assert read_events(FolderTree(tmp_path)) == ([], 1)


WRITER = """
import sys
from pathlib import Path
from explicit_learning.rundir.events import append_event
for number in range(50):
    append_event(Path(sys.argv[1]), "checkpoint", {"writer": int(sys.argv[2]), "number": number, "fill": "x" * 3000})
"""


def test_writers_do_not_interleave(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, str(number)], cwd=ROOT) for number in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    events, torn = read_events(FolderTree(tmp_path))
    assert torn == 0
    for writer in range(3):
        numbers = [event.data["number"] for event in events if event.data["writer"] == writer]
        assert numbers == list(range(50))


def test_kinds_are_chosen_and_a_kind_in_the_details_is_none(tmp_path: Path) -> None:
    append_event(tmp_path, "gates", GATES)
    append_event(tmp_path, "checkpoint", {"kind": "gates", "n": 1})
    append_event(tmp_path, "exit", {"n": 2})
    tree = FolderTree(tmp_path)
    assert [event.kind for event in read_events(tree, "gates", "exit")[0]] == ["gates", "exit"]
    assert [event.data["n"] for event in read_events(tree, "checkpoint")[0]] == [1]
    assert read_events(tree, "resume") == ([], 0)


def test_of_a_log_that_somebody_made_long_the_newest_lines_are_read(tmp_path: Path) -> None:
    append_event(tmp_path, "set-aside", {"n": 0})
    with (tmp_path / "events.jsonl").open("ab") as stream:
        line = canonical_bytes(
            {"data": {"fill": "x" * 1000}, "kind": "set-aside", "time": "2026-01-31T12:00:00.000005Z"}
        )
        stream.write((line + b"\n") * 5000)
        stream.write(line[:-1] + b" " * 2 * 1024 * 1024 + b"}\n")
    append_event(tmp_path, "set-aside", {"n": 1})
    events, skipped = read_events(FolderTree(tmp_path), "set-aside")
    assert len(events) == 4 * 1024 * 1024 // len(line)
    assert (events[-1].data, skipped) == ({"n": 1}, 0)
