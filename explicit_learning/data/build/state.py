"""What a build has done so far, in one SQLite file beside the dataset that is being made.

Each transaction is whole or not there, so a build that was killed goes on from its last one. The file is bound to the
source and the options; a build with others is refused. It lies in the building folder and goes with it. The journal is
a plain file (no shared memory), which works on network file systems too, and the file is locked from the first
transaction to the end: two builds of one folder would otherwise take each other's files away.
"""

from __future__ import annotations

import errno
import json
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.os_errors import write_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["OUTPUT", "State"]

OUTPUT = Context(gate="output", exit_code=ExitCode.OUTPUT)

_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (number INTEGER PRIMARY KEY, line TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS told (number INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, used INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pictures (id INTEGER PRIMARY KEY, pixels TEXT NOT NULL UNIQUE, hash BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS items (
    number INTEGER PRIMARY KEY, item_id TEXT NOT NULL UNIQUE, value TEXT NOT NULL,
    ask TEXT NOT NULL, lending TEXT, part TEXT, component INTEGER, turn INTEGER, done INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS item_pictures (number INTEGER NOT NULL, picture INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS views (
    number INTEGER NOT NULL, position INTEGER NOT NULL, value TEXT NOT NULL, relation TEXT NOT NULL,
    held_out INTEGER NOT NULL, ask TEXT NOT NULL, shown TEXT NOT NULL, PRIMARY KEY (number, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS left_out (number INTEGER NOT NULL, relation TEXT NOT NULL, reason TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS left_out_by_item ON left_out (number);
CREATE INDEX IF NOT EXISTS items_by_ask ON items (ask);
CREATE INDEX IF NOT EXISTS items_by_lending ON items (part, lending, item_id);
CREATE INDEX IF NOT EXISTS items_by_part ON items (part, item_id);
CREATE INDEX IF NOT EXISTS item_pictures_by_item ON item_pictures (number);
CREATE INDEX IF NOT EXISTS views_by_ask ON views (ask, held_out);
CREATE INDEX IF NOT EXISTS views_by_shown ON views (shown);
"""
_CACHE_KIB = 32 * 1024
_FULL = frozenset({sqlite3.SQLITE_FULL})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY_CODE = 0xFF


class State:
    """A build's record; close it at the end."""

    def __init__(self, path: Path) -> None:
        """Open the record, or start one.

        Raises:
            Refusal: If another build has it open, it is damaged, or it cannot be written.
        """
        self.path = path
        with self._refusals():
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None)
            self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = TRUNCATE")
            self._db.execute("PRAGMA temp_store = MEMORY")
            self._db.execute("BEGIN EXCLUSIVE")
            for statement in _TABLES.split(";"):
                self._db.execute(statement)
            self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file; what was not committed is gone."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block does, whole or not at all.

        Raises:
            Refusal: If the disk is full, or the file is damaged.
        """
        with self._refusals():
            self._db.execute("BEGIN")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def run(self, statement: str, *values: Any) -> None:  # noqa: ANN401 - what SQLite stores
        """Execute a statement."""
        with self._refusals():
            self._db.execute(statement, values)

    def run_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Execute a statement for every row of values."""
        with self._refusals():
            self._db.executemany(statement, rows)

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - as above
        """Yield the rows of a query, without holding them all."""
        with self._refusals():
            yield from self._db.execute(query, values)

    def one(self, query: str, *values: Any) -> tuple[Any, ...] | None:  # noqa: ANN401 - as above
        """Return the first row of a query, or ``None``."""
        return next(self.rows(query, *values), None)

    def count(self, query: str, *values: Any) -> int:  # noqa: ANN401 - as above
        """Return the number that a query yields."""
        row = self.one(query, *values)
        return int(row[0] or 0) if row else 0

    def get(self, name: str) -> Any:  # noqa: ANN401 - a JSON value
        """Return what was noted under a name, or ``None``."""
        row = self.one("SELECT value FROM about WHERE name = ?", name)
        return None if row is None else json.loads(row[0])

    def set(self, name: str, value: Any) -> None:  # noqa: ANN401 - a JSON value
        """Note a JSON value under a name."""
        self.run("INSERT OR REPLACE INTO about VALUES (?, ?)", name, json.dumps(value))

    def bind(self, stage: str, bound: dict[str, Any]) -> None:
        """Note what a stage depends on, or compare it with what is noted.

        Args:
            stage: The stage's name.
            bound: Names and JSON values.

        Raises:
            Refusal: If something differs, with one fault for each.
        """
        known = self.get(stage)
        if known is None:
            self.set(stage, bound)
            return
        faults = [
            OUTPUT.at(self.path.parent).fault(
                pointer=name,
                found=f"{found_text(known.get(name))}, with which this build began",
                expected=f"{found_text(bound.get(name))}, as asked for now",
                fix=f"give the same options as before, or remove {self.path.parent} to start from the beginning",
            )
            for name in sorted({*known, *bound})
            if known.get(name) != json.loads(json.dumps(bound.get(name)))
        ]
        if faults:
            raise Refusal(faults)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn SQLite's errors into refusals.

        Raises:
            Refusal: In place of a `sqlite3.Error` that comes from outside the program.
        """
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
            at = OUTPUT.at(self.path)
            if code in _BUSY:
                found, fix = "another build is at work in this folder", "wait until it has ended"
                raise at.refusal(found=found, expected="one build of a folder at a time", fix=fix) from None
            if code in _DAMAGED:
                found, fix = f"damaged: {error}", f"remove {self.path.parent}, and run the same command again"
                raise at.refusal(
                    found=found, expected="the record of a build", fix=fix, exit_code=ExitCode.IO
                ) from None
            if isinstance(error, sqlite3.OperationalError):
                fault = write_fault(_system_error(error, code), self.path, expected="room for the build's record")
                raise Refusal(fault) from None
            raise


def _system_error(error: sqlite3.OperationalError, code: int) -> OSError:
    """Return what the system must have answered."""
    number = errno.ENOSPC if code in _FULL else errno.EIO
    return OSError(number, str(error))
