"""The event log: what happened to a run, and when.

Times and hosts belong here and nowhere else, so that everything else in a run directory can be compared byte for byte.
Lines are appended by the launcher and by ranks alike, each in one write to a file opened for appending, which the
system does not interleave on a local disk. A kill can leave half a line; the next writer ends it, and readers skip and
count it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from explicit_learning.errors import Refusal
from explicit_learning.files.atomic import fsync_folder
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.regular import read_regular, require_regular
from explicit_learning.files.typed_json import checked_json, document, from_json, parsed, to_json
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Event", "EventKind", "ExitRecord", "GatesRecord", "LaunchRecord", "RankEndRecord", "append_event"]
__all__ += ["read_events", "records_of"]

GATE = "events"
EventKind = Literal["gates", "launch", "nodes", "resume", "checkpoint", "set-aside", "finalise", "exit"]
Record = TypeVar("Record", "GatesRecord", "LaunchRecord", "ExitRecord")


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
        hardware: The hardware as the gates found it.
        image: The image's identity as the gates found it.
        plan_file: The plan file that the run was started with, absolute.
        environment: The ranks' environment variables that the program set, and those of the user that it replaced.
        not_removed: Files that an earlier launch left half-written and that could not be removed, with the reason.
        file_system: What the file systems in use cannot do.
    """

    launch_id: str
    hardware: dict[str, Any]
    image: dict[str, Any]
    plan_file: str | None = None
    environment: dict[str, Any] | None = None
    not_removed: tuple[str, ...] = ()
    file_system: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """What an event of kind ``launch`` holds: ranks are about to start.

    Attributes:
        launch_id: Random name of the launch.
        action: Whether the run starts or resumes.
        checkpoint: Name of the checkpoint that it resumes from.
        running_commit: Git commit of the code that runs.
        running_dirty: Whether that code differs from its commit.
    """

    launch_id: str
    action: Literal["fresh", "resume"]
    checkpoint: str | None
    running_commit: str
    running_dirty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEndRecord:
    """How one rank of a launch ended; its fields are those of `RankOutcome`."""

    rank: int
    status: str
    optimizer_step: int | None
    checkpoint: str | None
    message: str | None
    peak_memory_bytes: int | None
    device_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """What an event of kind ``exit`` holds: a launch has ended.

    Attributes:
        launch_id: Random name of the launch.
        exit_code: The program's exit code.
        ranks: How each rank ended, by rank.
        faults: What kept a run whose ranks reached the last step from being complete.
    """

    launch_id: str
    exit_code: int
    ranks: tuple[RankEndRecord, ...]
    faults: tuple[dict[str, str | None], ...]


_KINDS: dict[type[Any], EventKind] = {GatesRecord: "gates", LaunchRecord: "launch", ExitRecord: "exit"}


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


def read_events(run: Path) -> tuple[list[Event], int]:
    """Return a run's events in order, and the number of lines between them that are torn or break the schema.

    Raises:
        OSError: If there is a file that cannot be read; no file means no events.
    """
    path = run / layout.EVENTS
    if not path.exists():
        return [], 0
    events: list[Event] = []
    skipped = 0
    for line in filter(None, read_regular(path).split(b"\n")):
        try:
            events.append(parsed(json.loads(line), Event, gate=GATE, file=str(path)))
        except (ValueError, Refusal):
            skipped += 1
    return events, skipped


def records_of(events: Sequence[Event], record: type[Record]) -> list[Record]:
    """Return the details of the events of one kind, typed, in order."""
    return [from_json(record, event.data) for event in events if event.kind == _KINDS[record]]
