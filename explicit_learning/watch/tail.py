"""What is new at the end of a file that another process appends to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Follower", "last_line"]

BLOCK_BYTES = 1 << 20
LAST_BYTES = 1 << 18  # more than any row of metrics


class Follower:
    """Yields each line of a file once, as it becomes whole."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        """Take the file, which need not be there yet.

        Args:
            path: The file.
            offset: Where the first line begins that is wanted.
        """
        self._path = path
        self._start = offset
        self._offset = offset
        self._inode: int | None = None

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines that are new, without their ends. Of a file that was replaced or cut, all are new.

        A file that cannot be read has no new lines: it may be there at the next call.
        """
        try:
            with self._path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                if self._inode not in {None, status.st_ino} or status.st_size < self._offset:
                    self._offset = self._start if status.st_size >= self._start else 0
                self._inode = status.st_ino
                stream.seek(self._offset)
                while line := stream.readline(BLOCK_BYTES):
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    yield line[:-1]
        except OSError:
            return


def last_line(path: Path) -> bytes | None:
    """Return the last whole line of a file without its end; ``None`` if there is none, or it cannot be read."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - LAST_BYTES))
            whole, end, _ = stream.read().rpartition(b"\n")
    except OSError:
        return None
    return whole.rpartition(b"\n")[2] if end else None
