"""Hashes of files that did not change since they were hashed, for commands that may rely on what the system says.

A file is taken for unchanged if its device, inode, size, modification time and change time are those of then. Every
write sets the change time, and no user can set it back. A file that changed while it was hashed, or just before, is not
remembered: a second change within the same tick of the clock would not show. Git has the same rule for its index
(https://git-scm.com/docs/racy-git).

The hashes lie in the user's cache folder. A folder that cannot be written, and a database that is damaged or in use,
only cost time.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from explicit_learning.files.caches import cache_folder

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["HashMemory", "hash_memory", "remembering_hashes"]

FILE = "file-hashes.v1.sqlite"
TABLE = """
CREATE TABLE IF NOT EXISTS hashes (
    device INTEGER, inode INTEGER, size INTEGER, modified INTEGER, changed INTEGER, sha256 TEXT, noted INTEGER,
    PRIMARY KEY (device, inode)
) WITHOUT ROWID
"""
FIND = "SELECT sha256 FROM hashes WHERE device = ? AND inode = ? AND size = ? AND modified = ? AND changed = ?"
NOTE = "INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?, ?)"
FORGET = "DELETE FROM hashes WHERE noted < (SELECT noted FROM hashes ORDER BY noted DESC LIMIT 1 OFFSET ?)"
MOST_FILES = 1_000_000
# Coarser than the change times of any file system that is in use (FAT's have two seconds), and than small differences
# of a file server's clock.
YOUNG_NS = 3_000_000_000
BUSY_SECONDS = 0.5

_memory: ContextVar[HashMemory | None] = ContextVar("hash_memory", default=None)


def hash_memory() -> HashMemory | None:
    """Return the memory that `hash_files` uses now; ``None`` where every byte is read."""
    return _memory.get()


@contextmanager
def remembering_hashes() -> Iterator[HashMemory]:
    """Let `hash_files` leave out, inside the block, what did not change since it was hashed."""
    memory = HashMemory(cache_folder())
    token = _memory.set(memory)
    try:
        yield memory
    finally:
        _memory.reset(token)


class HashMemory:
    """What is known of files from earlier.

    Attributes:
        files: Number of files that were not read.
        size: Their size. Unit: bytes.
    """

    def __init__(self, folder: Path | None) -> None:
        """Take the folder for the database; ``None`` remembers nothing."""
        self.files = 0
        self.size = 0
        self._file = None if folder is None else folder / FILE

    def known(self, statuses: Mapping[Path, os.stat_result]) -> dict[Path, str]:
        """Return the SHA-256 of those files that are as they were."""
        if self._file is None or not self._file.is_file():
            return {}
        found: dict[Path, str] = {}
        try:
            with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as database:
                for path, status in statuses.items():
                    if row := database.execute(FIND, _key(status)).fetchone():
                        found[path] = str(row[0])
        except sqlite3.Error:
            return {}
        self.files += len(found)
        self.size += sum(statuses[path].st_size for path in found)
        return found

    def note(self, hashes: Mapping[Path, str], statuses: Mapping[Path, os.stat_result], *, begun_ns: int) -> None:
        """Remember hashes.

        Args:
            hashes: SHA-256 by file.
            statuses: What the system said of each file before it was read.
            begun_ns: When the reading began. Unit: nanoseconds since the epoch.
        """
        rows = [
            (*_key(statuses[path]), sha256, begun_ns)
            for path, sha256 in hashes.items()
            if statuses[path].st_ctime_ns + YOUNG_NS < begun_ns and _is_unchanged(path, statuses[path])
        ]
        if self._file is None or not rows:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._file, timeout=BUSY_SECONDS)) as database, database:
                database.execute(TABLE)
                database.executemany(NOTE, rows)
                database.execute(FORGET, (MOST_FILES - 1,))
        except (OSError, sqlite3.Error):
            return


def _key(status: os.stat_result) -> tuple[int, ...]:
    return _signed(status.st_dev), _signed(status.st_ino), status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _signed(number: int) -> int:
    """Return a 64-bit number as SQLite stores it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _is_unchanged(path: Path, status: os.stat_result) -> bool:
    try:
        return _key(path.stat()) == _key(status)
    except OSError:
        return False
