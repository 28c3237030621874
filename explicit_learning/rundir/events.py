"""The event log: what happened to a run, and when.

Times and hosts belong here and nowhere else, so that everything else in a run directory can be compared byte for byte.
Lines are appended by the launcher and by ranks alike, each in one write to a file opened for appending, which the
system does not interleave on a local disk. A kill can leave half a line; the next writer ends it, and readers skip and
count it.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.files.atomic import fsync_folder
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.compiled_schema import compiled_schema
from explicit_learning.files.jsonl import matching_lines
from explicit_learning.files.regular import require_regular
from explicit_learning.files.typed_json import checked_json, document, from_json, to_json
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.files.tree import Tree

__all__ = ["Event", "EventKind", "GatesRecord", "append_event"]
__all__ += ["gates_records", "read_events"]

GATE = "events"
LINE_BYTES = 1024 * 1024
HELD_BYTES = 4 * 1024 * 1024
EventKind = Literal["gates", "launch", "resume", "checkpoint", "probe", "validation", "set-aside", "finalise", "exit"]


@document("event")
@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the log.

    Attributes:
        time: When it was written: UTC, ISO 8601 with microseconds.
        kind: What happened.
        data: The details, as JSON values.
    """

    time: str
    kind: EventKind
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatesRecord:
    """What an event of kind ``gates`` holds: a launch has passed all gates.

    Attributes:
        launch_id: Random name of the launch.
        plan_file: The plan file that the run was started with, absolute.
        not_removed: Files that an earlier launch left half-written and that could not be removed, with the reason.
        file_system: What the file systems in use cannot do.
    """

    launch_id: str
    plan_file: str | None = None
    not_removed: tuple[str, ...] = ()
    file_system: tuple[str, ...] = ()


def append_event(run: Path, kind: EventKind, data: object, *, at: datetime | None = None) -> None:
    """Append one event to a run's log, flushed to the disk.

    Args:
        run: The run directory.
        kind: What happened.
        data: The details: the kind's record, or a JSON object; without NaN.
        at: When; now by default.

    Raises:
        Refusal: If the event breaks its schema (exit code 70).
        OSError: If the file cannot be written.
    """
    path = run / layout.EVENTS
    time = (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    event = Event(time=time, kind=kind, data=to_json(data))
    line = canonical_bytes(checked_json(event, gate=GATE, file=str(path))) + b"\n"
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        status = os.fstat(descriptor)
        require_regular(path, status)
        size = status.st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        left = memoryview(line)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        fsync_folder(run)


def read_events(tree: Tree, *kinds: EventKind) -> tuple[list[Event], int]:
    """Return a run's newest events in order, and the number of lines between them that are torn or break the schema.

    The log is read once, from its beginning, and little of it is held: anybody can make it longer. Of the lines of
    these kinds, the newest 4 MiB are read, which are more than ten thousand events; a line of more than 1 MiB is none.

    Args:
        tree: The run directory's files.
        kinds: The kinds that are wanted; every kind by default.

    Raises:
        OSError: If there is a file that cannot be read; no file means no events.
    """
    newest, held = deque[bytes](), 0
    pattern = rb'"kind":"(?:%s)","time":"' % "|".join(kinds).encode() if kinds else rb"[^\n]"  # lines are canonical
    try:
        with tree.open(layout.EVENTS) as stream:
            for line in matching_lines(stream, re.compile(pattern), most=LINE_BYTES):
                newest.append(line)
                held += len(line)
                while held > HELD_BYTES:
                    held -= len(newest.popleft())
    except FileNotFoundError:
        return [], 0
    found = [_event(line) for line in newest]
    events = [event for event in found if event is not None]
    return [event for event in events if not kinds or event.kind in kinds], len(found) - len(events)


def _event(line: bytes) -> Event | None:
    """Return the event of a line; ``None`` if it is none: nobody wants to know why."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return from_json(Event, value) if compiled_schema("event")(value) else None


def gates_records(events: Sequence[Event]) -> list[GatesRecord]:
    """Return the details of the events of kind ``gates``, typed, in order."""
    return [from_json(GatesRecord, event.data) for event in events if event.kind == "gates"]
