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
from typing import TYPE_CHECKING, Any, NoReturn, Self

from explicit_learning.accounting.frontier import Frontier
from explicit_learning.accounting.set_aside import SetAside, set_aside_tail
from explicit_learning.errors import Fault, Refusal, found_text
from explicit_learning.files.atomic import fsync_folder, write_bytes
from explicit_learning.files.canonical import canonical_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["AppendLog"]

GATE = "accounting"
CHUNK = 1 << 20
OTHER_RUN = "resume with the plan and the data the run began with, or begin a new run (--out)"
RESTORE = "restore the run directory from a copy: rows that a checkpoint counts are missing or were changed"


class AppendLog:
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
        file: str,
        *,
        header: dict[str, Any],
        frontier: Frontier | None,
        visit: Callable[[dict[str, Any]], None] | None = None,
    ) -> AppendLog:
        """Open a file exactly at a frontier.

        Args:
            run: The run directory.
            file: The file, as a POSIX path relative to it.
            header: The file's first line.
            frontier: The position to continue from; ``None`` is the beginning.
            visit: Called with every row before the frontier.

        Raises:
            Refusal: If the file is bound to something else, or what lies before the frontier is not what was written.
            OSError: If the file cannot be read or written.
        """
        path, first = run / file, canonical_bytes(header) + b"\n"
        if frontier is None:
            _begin(path, first)
        _check_header(path, first)
        at = frontier or Frontier(file=file, offset=len(first), rows=0, tokens=0, digest=_sha256(first).hexdigest())
        state = _check_prefix(path, file, at)
        if visit is not None:
            _visit(path, at, visit)
        return cls(run, at, state, set_aside_tail(run, file, at.offset))

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self._rows

    @property
    def tokens(self) -> int:
        """Sum of the rows' token counts so far."""
        return self._tokens

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write rows at the end, in one write. Each must hold an integer ``token_count``.

        Raises:
            OSError: If the disk is full or failing. The file may then end in a torn line, which the next opening cuts;
                this object refuses to go on.
            ValueError: If the file is closed.
        """
        batch = list(rows)
        data = b"".join(canonical_bytes(row) + b"\n" for row in batch)
        self._write(data)
        self._state.update(data)
        self._offset += len(data)
        self._rows += len(batch)
        self._tokens += sum(row["token_count"] for row in batch)

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


def _sha256(data: bytes = b"") -> hashlib._Hash:
    return hashlib.sha256(data)


def _begin(path: Path, first: bytes) -> None:
    """Create the file, or mend one that ends within its own header."""
    if path.exists():
        with path.open("rb") as stream:
            found = stream.read(len(first))
        if len(found) == len(first) or not first.startswith(found):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, first)
    fsync_folder(path.parent.parent)


def _check_header(path: Path, first: bytes) -> None:
    try:
        with path.open("rb") as stream:
            found = stream.readline(CHUNK)
    except FileNotFoundError:
        _refuse(path, "", "no such file", "the file that the checkpoint counts rows of", RESTORE)
    if found == first:
        return
    expected = json.loads(first)
    try:
        value = json.loads(found)
        other = [name for name in expected if value[name] != expected[name]]
    except (ValueError, KeyError, TypeError):
        other = []
    if not other:
        _refuse(path, "", "a first line that is no header of this form", "the header of a ledger or trace", OTHER_RUN)
    where = f"{path}:1"
    raise Refusal(
        Fault(
            gate=GATE,
            file=where,
            pointer=f"/{name}",
            found=found_text(value[name]),
            expected=found_text(expected[name]),
            fix=OTHER_RUN,
        )
        for name in other
    )


def _check_prefix(path: Path, file: str, at: Frontier) -> hashlib._Hash:
    """Return the running hash of everything before the frontier, if that is what was written."""
    if at.file != file:
        _refuse(path, "/file", found_text(at.file), found_text(file), "use the frontier of this rank and file")
    state, left, lines = _sha256(), at.offset, 0
    with path.open("rb", buffering=0) as stream:
        while left and (chunk := stream.read(min(left, CHUNK))):
            state.update(chunk)
            left -= len(chunk)
            lines += chunk.count(b"\n")
    if left:
        size = at.offset - left
        _refuse(path, "/offset", f"{size:,} bytes", f"at least {at.offset:,} bytes ({at.rows:,} rows)", RESTORE)
    if (digest := state.hexdigest()) != at.digest:
        found = f"SHA-256 {digest} of the first {at.offset:,} bytes"
        _refuse(path, "/digest", found, f"{at.digest}, of {at.rows:,} rows", RESTORE)
    if lines != at.rows + 1:
        _refuse(path, "/rows", f"{lines - 1:,} rows before the frontier", f"{at.rows:,} rows", RESTORE)
    return state


def _visit(path: Path, at: Frontier, visit: Callable[[dict[str, Any]], None]) -> None:
    tokens = 0
    with path.open("rb") as stream:
        stream.readline()
        for _ in range(at.rows):
            row = json.loads(stream.readline())
            tokens += row["token_count"]
            visit(row)
    if tokens != at.tokens:
        _refuse(path, "/tokens", f"{tokens:,} tokens before the frontier", f"{at.tokens:,} tokens", RESTORE)


def _refuse(path: Path, pointer: str, found: str, expected: str, fix: str) -> NoReturn:
    raise Refusal(Fault(gate=GATE, file=str(path), pointer=pointer, found=found, expected=expected, fix=fix))
