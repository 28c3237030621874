"""The event log: what happened to a run, and when.

Times and hosts belong here and nowhere else, so that everything else a run leaves can be compared byte for byte. Lines
are appended by the launcher and by ranks alike, each in one write to a file opened for appending, which the system
does not interleave on a local disk. A kill can leave half a line; the next writer ends it, and readers skip and count
it.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.files.atomic import fsync_folder
from explicit_learning.files.canonical import canonical_bytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["EVENTS_NAME", "EventKind", "append_event", "read_events"]

EVENTS_NAME = "events.jsonl"
EventKind = Literal[
    "gates", "launch", "nodes", "resume", "checkpoint", "set-aside", "signal", "warning", "finalise", "exit"
]


def append_event(run: Path, kind: EventKind, data: dict[str, Any], *, at: datetime | None = None) -> None:
    """Append one event to a run's ``events.jsonl``, flushed to the disk.

    Args:
        run: The run directory.
        kind: What happened.
        data: What there is to say about it: JSON values, no NaN.
        at: When; now by default.

    Raises:
        OSError: If the file cannot be written.
    """
    time = (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    line = canonical_bytes({"time": time, "kind": kind, "data": data}) + b"\n"
    path = run / EVENTS_NAME
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
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


def read_events(run: Path) -> tuple[list[dict[str, Any]], int]:
    """Return a run's events in order, and the number of torn lines between them.

    Raises:
        OSError: If there is a file that cannot be read; no file means no events.
    """
    path = run / EVENTS_NAME
    if not path.exists():
        return [], 0
    events, torn = [], 0
    for line in path.read_bytes().split(b"\n"):
        if not line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            torn += 1
            continue
        if isinstance(event, dict) and event.keys() >= {"time", "kind", "data"}:
            events.append(event)
        else:
            torn += 1
    return events, torn
