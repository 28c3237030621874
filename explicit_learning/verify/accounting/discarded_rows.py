"""What a run sampled in vain: rows that were set aside, against the event log, and by themselves."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from explicit_learning.accounting.rows import LedgerEntry, TraceRow
from explicit_learning.accounting.set_aside import FOLDER, ROWS_BEYOND, read_stored
from explicit_learning.errors import found_text
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.accounting.set_aside import StoredRows
    from explicit_learning.errors import Context, Fault
    from explicit_learning.errors.collector import FaultCollector
    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.events import Event
    from explicit_learning.verify.accounting.trace_rows import TraceRows

__all__ = ["check_stored_rows", "event_faults", "file_faults", "untold"]

COMPARED = ("file", "rows", "tokens", "unreadable_rows")


def file_faults(tree: Tree, stored: Sequence[StoredRows], context: Context, *, finished: bool) -> Iterator[Fault]:
    """Yield the gaps between the numbers of the files that were set aside, and what is none of them.

    Args:
        tree: The run directory's files.
        stored: The files, counted.
        context: What the faults have in common.
        finished: Whether the run reached its last step: else a kill may have left a copy that is not yet one.
    """
    numbers = defaultdict[str, list[int]](list)
    for part in stored:
        numbers[part.file].append(part.number)
    for file, taken in numbers.items():
        if sorted(taken) != list(range(1, len(taken) + 1)):
            told = f"files number {', '.join(map(str, sorted(taken)))} of {file}"
            expected = f"numbers 1 to {len(taken)}: a file's number is one more than there were before it"
            yield context.fault(file=tree.place(FOLDER), found=told, expected=expected)
    names = {part.stored for part in stored}
    strays = [name for name in (*tree.files, *tree.others) if name.startswith(f"{FOLDER}/") and name not in names]
    for name in strays if finished else ():
        found, expected = tree.others.get(name, "another name"), "a file of rows that were set aside"
        yield context.fault(file=tree.place(name), found=found, expected=expected)


def event_faults(
    tree: Tree, stored: Sequence[StoredRows], events: Sequence[Event], context: Context
) -> Iterator[Fault]:
    """Yield what the event log tells of rows that were set aside and the files contradict.

    Args:
        tree: The run directory's files.
        stored: The files, counted.
        events: The event log.
        context: What the faults have in common.
    """
    at = context.at(tree.place(layout.EVENTS))
    parts = {part.stored: part for part in stored}
    for event in _told(events):
        name = event.data.get("stored")
        if not isinstance(name, str) or name not in parts:
            found = f"rows that were set aside to {found_text(name)}"
            yield at.fault(pointer="/data/stored", found=found, expected="a file of rows that is still there")
            continue
        for field in COMPARED:
            if (told := event.data.get(field)) != (counted := getattr(parts[name], field)):
                found, expected = found_text(told), f"{found_text(counted)}, as in {name}"
                yield at.fault(pointer=f"/data/{field}", found=found, expected=expected)


def untold(stored: Sequence[StoredRows], events: Sequence[Event]) -> list[str]:
    """Return the files that no event tells of: a kill can come between the two."""
    told = {name for event in _told(events) if isinstance(name := event.data.get("stored"), str)}
    return [part.stored for part in stored if part.stored not in told]


def _told(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the events about rows that were set aside to a file; of half a line there is none."""
    for event in events:
        if event.kind == "set-aside" and event.data.get("what") == ROWS_BEYOND and event.data.get("stored") is not None:
            yield event


def check_stored_rows(tree: Tree, part: StoredRows, *, run_id: str, rows: TraceRows, collector: FaultCollector) -> None:
    """Look at rows that were set aside as at those that the run kept, but for their order.

    Args:
        tree: The run directory's files.
        part: The file.
        run_id: The run.
        rows: Checks rows of a trace.
        collector: Takes the faults.

    Raises:
        OSError: If the file cannot be read.
    """
    place = tree.place(part.stored)
    for number, row in enumerate(read_stored(tree, part), start=1):
        if isinstance(row, TraceRow):
            rows.check(row, f"{place}:{number}", collector, kept=False)
        elif isinstance(row, LedgerEntry) and row.run_id != run_id:
            found, expected = found_text(row.run_id), f"{found_text(run_id)}, as in the plan"
            collector.report(file=f"{place}:{number}", pointer="/run_id", found=found, expected=expected)
