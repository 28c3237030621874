"""The one append-only mechanism under ledger and trace.

Rows are only ever added at the end, each batch in one write; a checkpoint remembers the position it belongs to, and a
resume cuts everything beyond it. Nothing is rewritten, so the cost of a step or a checkpoint does not grow with the
run's length. Only opening a file reads it, once, to prove that what lies before the frontier is what was written.
There is no clock and no host in these files: an interrupted run and one that was never interrupted must leave the same
bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from explicit_learning.accounting.binding import check_header, log_file
from explicit_learning.accounting.frontier import CHUNK, Frontier, prefixes
from explicit_learning.accounting.rows import SampledCompletion
from explicit_learning.accounting.set_aside import SetAside, set_aside_tail
from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.atomic import fsync_folder, write_bytes
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.jsonl import stream_rows
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.regular import NotRegularError, require_regular
from explicit_learning.files.strict_json import parse_json
from explicit_learning.files.typed_json import MAYBE_OTHER_VERSION, OTHER_VERSION, checked_json, parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from explicit_learning.accounting.binding import Binding, Kind
    from explicit_learning.files.tree import Tree

__all__ = ["AppendLog", "read_log"]

RESTORE = "restore the run directory from a copy: rows that a checkpoint counts are missing or were changed"
CONTEXT = Context(gate="accounting", fix=RESTORE)


RowT = TypeVar("RowT", bound=SampledCompletion)


def read_log(
    tree: Tree, binding: Binding, kind: Kind, row_type: type[RowT], *, may_be_torn: bool = False
) -> Iterator[RowT]:
    """Yield all rows of a file, in order; the first one is line 2.

    Args:
        tree: The run directory's files.
        binding: What the file must belong to.
        kind: Which of a rank's files.
        row_type: The class of its rows.
        may_be_torn: Whether a last line without an end is left out: of a run that was killed.

    Raises:
        Refusal: If the file is missing, unreadable or a link, is bound to something else, or has a line that is too
            long or breaks its schema.
    """
    name = log_file(kind, binding.rank)
    place, fix = tree.place(name), f"{RESTORE}; {MAYBE_OTHER_VERSION}"
    try:
        with tree.open(name) as stream:
            lines = stream_rows(stream, file=place, gate=CONTEXT.gate, may_be_torn=may_be_torn)
            _, header = next(lines, (1, None))
            if header is None:
                expected = f"the header of a {kind} in its first line"
                raise CONTEXT.at(place).refusal(found="an empty file", expected=expected)
            check_header(header, binding.header(kind), file=place)
            for number, value in lines:
                yield parsed(value, row_type, gate=CONTEXT.gate, file=f"{place}:{number}", fix=fix)
    except OSError as error:
        raise Refusal(read_fault(error, place, gate=CONTEXT.gate, expected="a readable JSON Lines file")) from None


class AppendLog(Generic[RowT]):
    """An open file of canonical JSON lines, positioned at its end."""

    def __init__(self, run: Path, at: Frontier, state: hashlib._Hash, aside: SetAside | None) -> None:
        self.file = at.file
        self.set_aside = aside
        self._offset, self._rows, self._tokens = at.offset, at.rows, at.tokens
        self._state = state
        self._descriptor: int | None = os.open(run / at.file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    @classmethod
    def open(
        cls,
        run: Path,
        binding: Binding,
        kind: Kind,
        row_type: type[RowT],
        *,
        frontier: Frontier | None,
        visit: Callable[[RowT], None] | None = None,
    ) -> AppendLog[RowT]:
        """Open a file exactly at a frontier.

        Args:
            run: The run directory.
            binding: What the file belongs to.
            kind: Which of a rank's files.
            row_type: The class of its rows.
            frontier: The position to continue from; ``None`` is the beginning.
            visit: Called with every row before the frontier; without it rows are hashed and not read.

        Raises:
            Refusal: If the file is bound to something else, or what lies before the frontier is not what was written.
            OSError: If the file cannot be read or written.
        """
        file, header = log_file(kind, binding.rank), binding.header(kind)
        path = run / file
        _refuse_irregular(path)
        first = canonical_bytes(checked_json(header, gate=CONTEXT.gate, file=file)) + b"\n"
        if frontier is None:
            _start(path, first)
        if (found := _first_line(path)) != first:
            value = parse_json(found, gate=CONTEXT.gate, file=f"{path}:1", fix=RESTORE)
            check_header(value, header, file=str(path))
        at = frontier or Frontier(
            file=file, offset=len(first), rows=0, tokens=0, digest=hashlib.sha256(first).hexdigest()
        )
        state = _check_prefix(path, file, at)
        if visit is not None:
            _visit(path, at, row_type, visit)
        return cls(run, at, state, set_aside_tail(run, file, at.offset, row_type))

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self._rows

    @property
    def tokens(self) -> int:
        """Sum of the rows' token counts so far."""
        return self._tokens

    def append(self, rows: Iterable[RowT]) -> None:
        """Write rows at the end, in one write, once all of them have passed their schema.

        Raises:
            Refusal: With the first row that breaks its schema (exit code 70).
            OSError: If the disk is full or failing. The file may then end in a torn line, which the next opening cuts;
                this object refuses to go on.
            ValueError: If the file is closed.
        """
        batch = list(rows)
        lines = [canonical_bytes(checked_json(row, gate=CONTEXT.gate, file=self.file)) + b"\n" for row in batch]
        data = b"".join(lines)
        self._write(data)
        self._state.update(data)
        self._offset += len(data)
        self._rows += len(batch)
        self._tokens += sum(row.token_count for row in batch)

    def frontier(self) -> Frontier:
        """Flush the file to the disk and return the position of its end.

        Raises:
            OSError: If the disk is failing.
            ValueError: If the file is closed.
        """
        os.fsync(self._open_descriptor())
        digest = self._state.hexdigest()
        return Frontier(file=self.file, offset=self._offset, rows=self._rows, tokens=self._tokens, digest=digest)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self.file} is closed")
        return self._descriptor

    def _write(self, data: bytes) -> None:
        descriptor, left = self._open_descriptor(), memoryview(data)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except BaseException:
            self.close()  # the file may end in half a row: nothing may follow it
            raise


def _refuse_irregular(path: Path) -> None:
    """Refuse a pipe or a device in the file's place, which would be waited for."""
    try:
        require_regular(path, path.stat())
    except FileNotFoundError:
        return  # whoever needs it says so
    except NotRegularError as error:
        raise CONTEXT.at(path).refusal(found=str(error.strerror), expected="a regular file") from None


def _start(path: Path, first: bytes) -> None:
    """Create the file, or write its header again where the file ends within it."""
    if path.exists():
        with path.open("rb") as stream:
            found = stream.read(len(first))
        if len(found) == len(first) or not first.startswith(found):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, first)
    fsync_folder(path.parent.parent)


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.readline(CHUNK)
    except FileNotFoundError:
        expected = "the file whose rows the checkpoint counts"
        raise CONTEXT.at(path).refusal(pointer="", found="no such file", expected=expected) from None


def _check_prefix(path: Path, file: str, at: Frontier) -> hashlib._Hash:
    """Return the running hash of everything before the frontier, if that is what was written."""
    refusal = CONTEXT.at(path).refusal
    if at.file != file:
        fix = "restore the checkpoint's folder from a copy: it counts the rows of another file"
        raise refusal(pointer="/file", found=found_text(at.file), expected=found_text(file), fix=fix)
    with path.open("rb") as stream:
        [prefix] = prefixes(stream, [at.offset])
    if prefix.offset < at.offset:
        expected = f"at least {at.offset:,} bytes ({at.rows:,} rows)"
        raise refusal(pointer="/offset", found=f"{prefix.offset:,} bytes", expected=expected)
    if (digest := prefix.state.hexdigest()) != at.digest:
        found = f"SHA-256 {digest} of the first {at.offset:,} bytes"
        raise refusal(pointer="/digest", found=found, expected=f"{at.digest}, of {at.rows:,} rows")
    if prefix.lines != at.rows + 1:
        found = f"{prefix.lines - 1:,} rows before the frontier"
        raise refusal(pointer="/rows", found=found, expected=f"{at.rows:,} rows")
    return prefix.state


def _visit(path: Path, at: Frontier, row_type: type[RowT], visit: Callable[[RowT], None]) -> None:
    """Visit the rows before the frontier. Their digest is proven, so a plain JSON reader will do."""
    tokens = 0
    with path.open("rb") as stream:
        stream.readline()
        for number in range(2, at.rows + 2):
            value = json.loads(stream.readline())
            row = parsed(value, row_type, gate=CONTEXT.gate, file=f"{path}:{number}", fix=OTHER_VERSION)
            tokens += row.token_count
            visit(row)
    if tokens != at.tokens:
        found = f"{tokens:,} tokens before the frontier"
        raise CONTEXT.at(path).refusal(pointer="/tokens", found=found, expected=f"{at.tokens:,} tokens")
