"""Files of a source, watched: what is read must be what was hashed.

A dataset names its source by hash. A file that somebody writes to while it is read would give rows of two versions, so
a file is hashed when the source is opened, hashed again while its rows stream by, and compared at the end.
"""

from __future__ import annotations

import hashlib
import io
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.build.source import SourceFile
from explicit_learning.errors import Context, Refusal
from explicit_learning.files.git_lfs import LFS_FIX, LFS_POINTER, is_lfs_pointer
from explicit_learning.files.hashing import CHUNK, sha256_file
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.progress import progress
from explicit_learning.files.regular import open_regular
from explicit_learning.files.strict_json import UTF16_MARKS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

__all__ = ["GATE", "HEAD_BYTES", "HashedReader", "WatchedFile", "reading_errors", "require_content"]

GATE = "source"
HEAD_BYTES = 1 << 16


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Turn what the system answers to reading a file into a refusal.

    Raises:
        Refusal: In place of an `OSError`, or of the `ValueError` that Python raises for a path no system can hold.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        raise Refusal(read_fault(error, path, gate=GATE, expected="a readable source")) from None


def require_content(path: Path, head: bytes) -> None:
    """Look at a file's first bytes for what no form starts with.

    Raises:
        Refusal: If it is a Git LFS pointer, or UTF-16 text.
    """
    at = Context(gate=GATE, file=str(path))
    if is_lfs_pointer(head):
        raise at.refusal(found=LFS_POINTER, expected="the file", fix=LFS_FIX)
    if head.startswith(UTF16_MARKS):
        raise at.refusal(found="UTF-16 (byte-order mark)", expected="UTF-8", fix="save the file as UTF-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFile:
    """A file of a source as it was when the source was opened.

    Attributes:
        path: The file.
        sha256: SHA-256 of its bytes.
        state: Device, inode, bytes and time of the last change in nanoseconds.
        head: Its first bytes, at most 64 KiB.
    """

    path: Path
    sha256: str
    state: tuple[int, int, int, int]
    head: bytes

    @classmethod
    def opened(cls, path: Path) -> WatchedFile:
        """Hash a file, with progress when it takes long.

        Raises:
            Refusal: If it cannot be read, is a Git LFS pointer or UTF-16 text, or changes meanwhile.
        """
        with reading_errors(path):
            state = _state(path)
            with open_regular(path) as stream:
                head = stream.read(HEAD_BYTES)
            with progress(f"hashing {path.name}", state[2], "B") as advance:
                sha256 = sha256_file(path, advance)
        require_content(path, head)
        file = cls(path=path, sha256=sha256, state=state, head=head)
        file.require_state()
        return file

    @property
    def source_file(self) -> SourceFile:
        """The file as a source names it."""
        return SourceFile(path=self.path, sha256=self.sha256, bytes=self.state[2])

    @contextmanager
    def reading(self) -> Iterator[BinaryIO]:
        """Open the file for reading; what is left unread at the end is read too, and the whole is compared.

        A refusal of the content is compared as well, for the content may be half of one version and half of another.
        Nothing is compared where reading is broken off.

        Raises:
            Refusal: If the file cannot be read, or is not what it was when the source was opened.
        """
        self.require_state()
        with reading_errors(self.path):
            raw = HashedReader(self)
        with raw, io.BufferedReader(raw, CHUNK) as stream:
            try:
                yield stream
            except Refusal:
                self._compare(stream, raw)
                raise
            self._compare(stream, raw)
        self.require_state()

    def _compare(self, stream: BinaryIO, raw: HashedReader) -> None:
        while stream.read(CHUNK):
            pass
        if raw.sha256 != self.sha256:
            raise self._changed("other bytes than before") from None

    def require_state(self) -> None:
        """Compare what the system says of the file with what it said when the source was opened.

        Raises:
            Refusal: If it differs, or the file is gone.
        """
        with reading_errors(self.path):
            state = _state(self.path)
        if state != self.state:
            raise self._changed(f"{state[2]:,} bytes instead of {self.state[2]:,}" if state[2] != self.state[2] else "")

    def require_bytes(self) -> None:
        """Hash the file once more: for forms that are not read from begin to end.

        Raises:
            Refusal: If it is not what it was when the source was opened.
        """
        self.require_state()
        with reading_errors(self.path):
            sha256 = sha256_file(self.path)
        if sha256 != self.sha256:
            raise self._changed("other bytes than before")

    def _changed(self, what: str) -> Refusal:
        return Context(gate=GATE, file=str(self.path)).refusal(
            found="the file changed while it was read" + (f": {what}" if what else ""),
            expected="the bytes that it had when reading began",
            fix="wait until nothing writes to it, or build from a copy",
        )


class HashedReader(io.RawIOBase):
    """A file that is hashed while it is read; each chunk is preceded by a look whether the file has changed."""

    def __init__(self, file: WatchedFile) -> None:
        """Open the file.

        Raises:
            OSError: If it cannot be opened.
        """
        super().__init__()
        self._file = file
        self._stream = open_regular(file.path)
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """SHA-256 of what was read until now."""
        return self._digest.hexdigest()

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read into a buffer and return the number of bytes, 0 at the end.

        Raises:
            Refusal: If the file has changed, or cannot be read.
        """
        with reading_errors(self._file.path):
            data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._digest.update(data)
        self._file.require_state()
        return len(data)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        super().close()


def _state(path: Path) -> tuple[int, int, int, int]:
    status = os.stat(path)  # noqa: PTH116 - it raises for what is missing, as `Path.stat` does
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
