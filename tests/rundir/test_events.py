"""The event log: lines in order, whole whatever happened to the one before."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import ROOT
from explicit_learning.files.schema import validate
from explicit_learning.rundir.events import Event, append_event, read_events

if TYPE_CHECKING:
    from pathlib import Path

AT = datetime(2026, 1, 31, 13, 0, 0, 5, tzinfo=timezone(timedelta(hours=1)))


def test_bytes_are_known(tmp_path: Path) -> None:
    append_event(tmp_path, "launch", {"launch_id": "n1", "checkpoint": None}, at=AT)
    line = b'{"data":{"checkpoint":null,"launch_id":"n1"},"kind":"launch","time":"2026-01-31T12:00:00.000005Z"}\n'
    assert (tmp_path / "events.jsonl").read_bytes() == line
    assert validate(json.loads(line), "event", gate="test", file="events.jsonl") == []


def test_now_is_the_default(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    append_event(tmp_path, "exit", {})
    ((event,), torn) = read_events(tmp_path)
    assert torn == 0
    assert before <= datetime.fromisoformat(event.time) <= datetime.now(UTC)


def test_no_file_means_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path) == ([], 0)


def test_a_line_torn_at_any_byte_costs_only_itself(tmp_path: Path) -> None:
    append_event(tmp_path, "gates", {"n": 1}, at=AT)
    first = (tmp_path / "events.jsonl").read_bytes()
    append_event(tmp_path, "launch", {"n": 2}, at=AT)
    whole = (tmp_path / "events.jsonl").read_bytes()
    for length in range(len(first), len(whole) + 1):
        (tmp_path / "events.jsonl").write_bytes(whole[:length])
        append_event(tmp_path, "exit", {"n": 3}, at=AT)
        events, torn = read_events(tmp_path)
        kept = length >= len(whole) - 1  # without its newline only, a line is still whole
        assert [event.data["n"] for event in events] == ([1, 2, 3] if kept else [1, 3])
        assert torn == (0 if kept or length == len(first) else 1)


def test_lines_that_are_not_events_are_counted(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'[]\n{"time": 1}\n\xff\n')
    assert read_events(tmp_path) == ([], 3)


def test_an_event_that_breaks_its_schema_is_refused_and_not_written(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="/kind") as refusal:
        append_event(tmp_path, "signal", {})  # type: ignore[arg-type] # the point of the test
    assert refusal.value.exit_code == ExitCode.INTERNAL
    assert not (tmp_path / "events.jsonl").exists()


def test_an_event_of_an_unknown_kind_is_counted_and_left_out(tmp_path: Path) -> None:
    append_event(tmp_path, "gates", {}, at=AT)
    line = (tmp_path / "events.jsonl").read_text()
    (tmp_path / "events.jsonl").write_text(line.replace("gates", "signal") + line)
    assert read_events(tmp_path) == ([Event(time="2026-01-31T12:00:00.000005Z", kind="gates", data={})], 1)


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
    events, torn = read_events(tmp_path)
    assert torn == 0
    for writer in range(3):
        numbers = [event.data["number"] for event in events if event.data["writer"] == writer]
        assert numbers == list(range(50))
