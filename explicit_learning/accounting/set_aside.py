"""Rows beyond a checkpoint's frontier: kept, counted, and out of the way.

A killed run has sampled completions that its newest checkpoint does not count. They will be sampled again, so they must
leave the ledger, but they did cost tokens, so they are moved and not deleted.

A kill may strike between the copy and the cut, and must not make the same rows count twice. The copy therefore has a
``.pending`` name with the offset at which the cut is due: the next opening sees from the file's length whether the cut
happened, and either only renames the copy or throws it away and starts over.
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import Kind, log_file
from explicit_learning.accounting.rows import LedgerEntry, SampledCompletion, TraceRow
from explicit_learning.errors import Refusal
from explicit_learning.files.atomic import fsync_folder, write_bytes
from explicit_learning.files.jsonl import bounded_lines
from explicit_learning.files.strict_json import parse_json
from explicit_learning.files.typed_json import parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from explicit_learning.files.tree import Tree

__all__ = [
    "FOLDER",
    "ROWS_BEYOND",
    "Discarded",
    "SetAside",
    "StoredRows",
    "discarded",
    "discarded_in",
    "read_stored",
    "set_aside_tail",
    "stored_rows",
]

GATE = "accounting"
FOLDER = "accounting/set-aside"
PENDING = ".pending"
ROWS_BEYOND = "rows beyond the checkpoint"  # what the event of a `SetAside` is about
ROW_TYPES: dict[Kind, type[SampledCompletion]] = {"ledger": LedgerEntry, "trace": TraceRow}
STORED = re.compile(rf"{FOLDER}/rank-(0|[1-9][0-9]*)/(ledger|trace)-([0-9]{{4,}})-at-[0-9]+\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """What opening a file at a frontier took out of it.

    Attributes:
        file: The file, relative to the run directory.
        stored: Where the rows are now, relative to the run directory; ``None`` if there was no whole row.
        rows: Whole rows that were moved.
        tokens: Sum of their token counts.
        unreadable_rows: How many of them break their schema (damage by the disk, not by a kill); their tokens are not
            known.
        torn_bytes: Length of a last line without an end, which was cut and not kept.
    """

    file: str
    stored: str | None
    rows: int
    tokens: int
    unreadable_rows: int
    torn_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """A file of rows that were set aside.

    Attributes:
        file: The file that they were taken out of, relative to the run directory.
        stored: Where they are now, relative to the run directory.
        kind: Whether they are a ledger's or a trace's.
        number: How many times rows of that file had been set aside then, this time included.
        rows: Whole rows.
        tokens: Sum of their token counts.
        unreadable_rows: How many of them break their schema; their tokens are not known.
    """

    file: str
    stored: str
    kind: Kind
    number: int
    rows: int
    tokens: int
    unreadable_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """All completions of a run that were sampled in vain, and their tokens."""

    completions: int
    tokens: int


def set_aside_tail(run: Path, file: str, offset: int, row_type: type[SampledCompletion]) -> SetAside | None:
    """Cut a file at an offset, and keep the whole rows that were beyond it.

    Args:
        run: The run directory.
        file: The file, as a POSIX path relative to it, such as ``accounting/rank-0/ledger.jsonl``.
        offset: Where to cut, in bytes; the end of a line.
        row_type: The class of the file's rows.

    Returns:
        What was taken out, or ``None`` if the file ended there anyway.

    Raises:
        OSError: If the copy cannot be written; the file is then as it was.
    """
    path = run / file
    folder = run / FOLDER / path.parent.name
    _settle(folder, path)
    with path.open("rb") as stream:
        stream.seek(offset)
        tail = stream.read()
    if not tail:
        return None
    whole = tail[: tail.rfind(b"\n") + 1]
    pending = None
    if whole:
        folder.mkdir(parents=True, exist_ok=True)
        number = 1 + sum(1 for _ in folder.glob(f"{path.stem}-*.jsonl"))
        pending = folder / f"{path.stem}-{number:04d}-at-{offset}.jsonl{PENDING}"
        write_bytes(pending, whole)
    _cut(path, offset)
    stored = _finish(pending) if pending else None
    rows, tokens, unreadable = _count(io.BytesIO(whole), row_type)
    return SetAside(
        file=file,
        stored=stored.relative_to(run).as_posix() if stored else None,
        rows=rows,
        tokens=tokens,
        unreadable_rows=unreadable,
        torn_bytes=len(tail) - len(whole),
    )


def discarded(tree: Tree) -> Discarded:
    """Count everything that was set aside from a run's ledgers so far.

    Raises:
        OSError: If a file cannot be read.
    """
    return discarded_in(stored_rows(tree))


def discarded_in(parts: Iterable[StoredRows]) -> Discarded:
    """Add up what was set aside from ledgers; traces have the same completions, or fewer."""
    counts = [part for part in parts if part.kind == "ledger"]
    return Discarded(completions=sum(part.rows for part in counts), tokens=sum(part.tokens for part in counts))


def stored_rows(tree: Tree) -> Iterator[StoredRows]:
    """Yield every file of rows that were set aside from a run's ledgers and traces, counted.

    Raises:
        OSError: If a file cannot be read.
    """
    for name in tree.files:
        if match := STORED.fullmatch(name):
            kind: Kind = "ledger" if match[2] == "ledger" else "trace"
            with tree.open(name) as stream:
                rows, tokens, unreadable = _count(stream, ROW_TYPES[kind])
            file = log_file(kind, int(match[1]))
            yield StoredRows(
                file=file,
                stored=name,
                kind=kind,
                number=int(match[3]),
                rows=rows,
                tokens=tokens,
                unreadable_rows=unreadable,
            )


def _settle(folder: Path, path: Path) -> None:
    """Finish what a kill interrupted."""
    for pending in sorted(folder.glob(f"{path.stem}-*{PENDING}")):
        due = int(pending.name.removesuffix(f".jsonl{PENDING}").rpartition("-")[2])
        if path.stat().st_size > due:
            pending.unlink()
        else:
            _finish(pending)


def _finish(pending: Path) -> Path:
    final = pending.with_name(pending.name.removesuffix(PENDING))
    pending.rename(final)
    fsync_folder(final.parent)
    return final


def _cut(path: Path, offset: int) -> None:
    with path.open("r+b") as stream:
        stream.truncate(offset)
        os.fsync(stream.fileno())


def read_stored(tree: Tree, part: StoredRows) -> Iterator[SampledCompletion | None]:
    """Yield the rows of a file of rows that were set aside, line by line; ``None`` for one that breaks its schema.

    Raises:
        OSError: If the file cannot be read.
    """
    with tree.open(part.stored) as stream:
        yield from _rows(stream, ROW_TYPES[part.kind])


def _count(stream: BinaryIO, row_type: type[SampledCompletion]) -> tuple[int, int, int]:
    """Return rows, tokens and unreadable rows."""
    rows = tokens = unreadable = 0
    for row in _rows(stream, row_type):
        rows += 1
        if row is None:
            unreadable += 1
        else:
            tokens += row.token_count
    return rows, tokens, unreadable


def _rows(stream: BinaryIO, row_type: type[SampledCompletion]) -> Iterator[SampledCompletion | None]:
    """Yield rows, and ``None`` for an unreadable one; a last line without an end is not a row."""
    for line in bounded_lines(stream):
        if not line.endswith(b"\n"):
            return
        try:
            yield parsed(parse_json(line, gate=GATE, file=FOLDER), row_type, gate=GATE, file=FOLDER)
        except Refusal:
            yield None
