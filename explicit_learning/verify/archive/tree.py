"""A packed run, read where it lies: a plain tar is not unpacked, and no file in it is read into memory.

One pass over the headers makes an index of names and places. Whatever `el pack` does not write is refused rather than
understood: two programs that read one archive in two ways would check one run and train another.
"""

from __future__ import annotations

import errno
import io
import os
import re
import tarfile
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from explicit_learning.errors import Context, FaultCollector, Refusal, found_text
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.regular import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from _typeshed import WriteableBuffer

__all__ = ["END", "MAX_FILES", "ArchiveTree", "padding"]

MAX_FILES = 1_000_000  # each takes about 500 bytes of memory and 30 microseconds to list
MAX_EXTENSION = 1 << 16  # bytes of the extended header before a member; a path is at most 4,096 bytes long
MAX_END = 1 << 20  # bytes of zeros at the end; tar programs fill up to a multiple of 10,240
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)

# The first bytes of what people do to a tar file, and how to undo it.
COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"\xfd7zXZ\x00": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"BZh": ("bzip2", "bunzip2"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"PK\x05\x06": ("zip", "unzip"),
}
KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_LONGNAME: "a long name in GNU's form",
    tarfile.GNUTYPE_LONGLINK: "a long link in GNU's form",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.XGLTYPE: "an extended header for all members",
}
WITHOUT_DATA = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
# What an extended header may say beside a path and a size; nothing of it matters to a run.
IGNORED = {"atime", "comment", "ctime", "gid", "gname", "mtime", "uid", "uname"}
RECORD = re.compile(rb"([1-9][0-9]{0,9}) ([^=\n]+)=")
SIZE = re.compile(r"[0-9]{1,18}")
# The parts of a header that programs read in different ways: its size in eleven octal digits, and POSIX's mark, without
# which some take the end of a long name for something else.
POSIX = re.compile(rb".{124}[0-7]{11}[\0 ].{121}ustar\x0000", re.DOTALL)

CONTEXT = Context(gate="archive", fix="unpack it into an empty folder and use that, or pack the run with `el pack`")
EXPECTED = "an uncompressed tar archive, as `el pack` writes it"
AGAIN = "copy or download the archive again, and compare its SHA-256 with that which `el pack` printed"


class Place(NamedTuple):
    """Where a file's bytes lie in the archive, in bytes."""

    offset: int
    size: int


class ArchiveTree:
    """The files of an archive, as they were when its headers were read (see `Tree`). Members have no top folder."""

    def __init__(self, path: Path) -> None:
        """Read the headers.

        Raises:
            Refusal: If the archive cannot be read, or holds anything that `el pack` does not write; with every fault
                up to the first that hides where the next header is.
        """
        self.path = path
        self.others: dict[str, str] = {}
        faults = FaultCollector(CONTEXT.at(path))
        try:
            with open_regular(path) as stream:
                self._identity = _identity(stream)
                self._places = _Headers(stream, faults).places()
        except OSError as error:
            expected = f"a run directory, or {EXPECTED}"
            fault = read_fault(error, path, gate=CONTEXT.gate, expected=expected, missing_fix="check the path")
            raise Refusal(fault) from None
        faults.refuse_if_any()
        self.files: dict[str, int] = {name: self._places[name].size for name in sorted(self._places)}

    def place(self, name: str) -> str:
        """Return a file as ``ARCHIVE!/NAME``."""
        return f"{self.path}!/{escaped(name)}" if name else str(self.path)

    def open(self, name: str) -> BinaryIO:
        """Open a file of the list, on a descriptor of its own.

        Raises:
            OSError: If it is not in the list, or the archive cannot be read or was changed after its headers were read.
        """
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.place(name))
        stream = open_regular(self.path)
        if _identity(stream) != self._identity:
            stream.close()
            raise OSError(errno.EIO, "the archive was changed while it was in use", self.place(name))
        return io.BufferedReader(_Slice(stream, self._places[name], self.place(name)))


def padding(size: int) -> int:
    """Return how many zeros follow a file of a size in bytes, so that the next header starts at a block."""
    return -size % BLOCK


def _identity(stream: BinaryIO) -> tuple[int, int, int, int]:
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Slice(io.RawIOBase):
    """A part of an open file, as a file."""

    def __init__(self, stream: BinaryIO, place: Place, name: str) -> None:
        self._stream, self._place, self._name = stream, place, name
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")[: max(0, self._place.size - self._position)]
        count = os.preadv(self._stream.fileno(), [target], self._place.offset + self._position) if target else 0
        if target and not count:
            raise OSError(errno.EIO, "the archive ends inside this file", self._name)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._place.size}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._name)
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Unreadable(Exception):  # noqa: N818 - a fault on its way to the collector
    """What is wrong hides where the next header is; ``args`` are what was found, what was expected, and the fix."""


class _Headers:
    """One pass over an archive's headers."""

    def __init__(self, stream: BinaryIO, faults: FaultCollector) -> None:
        self._descriptor, self._faults = stream.fileno(), faults
        self._length = os.fstat(self._descriptor).st_size
        self._places: dict[str, Place] = {}
        self._folders: set[str] = set()

    def places(self) -> dict[str, Place]:
        """Return where every file lies; what is wrong goes to the collector."""
        try:
            self._walk()
        except _Unreadable as unreadable:
            found, expected, fix = unreadable.args
            self._faults.report(found=found, expected=expected, fix=fix)
        for name in _with_others_inside(self._places):
            self._refuse(name, "a file with others inside", "files that are not folders, too")
        return self._places

    def _walk(self) -> None:
        position, count = 0, 0
        extension: dict[str, str] | None = None
        while not self._ends(position, extension):
            header = self._header(position)
            position += BLOCK
            if header.type == tarfile.XHDTYPE:
                if extension is not None:
                    raise _Unreadable(f"two extended headers in a row at byte {position:,}", "one at most", CONTEXT.fix)
                extension = self._extension(position, header.size)
                position += header.size + padding(header.size)
                continue
            count += 1
            if count > MAX_FILES:
                raise _Unreadable(f"more than {MAX_FILES:,} members", f"at most {MAX_FILES:,}", CONTEXT.fix)
            name, size = self._described(header, extension or {}, position)
            extension = None
            self._take(header.type, name, Place(position, size))
            if header.type not in WITHOUT_DATA:
                position += size + padding(size)

    def _ends(self, position: int, extension: dict[str, str] | None) -> bool:
        """Whether the archive ends here, in order: with two blocks of zeros, and zeros alone behind them."""
        rest = self._length - position
        if position and rest < BLOCK:
            raise _Unreadable(
                f"{self._length:,} bytes, which end without the two blocks of zeros that end an archive",
                "a whole archive",
                AGAIN,
            )
        if rest < BLOCK or any(self._read(position, BLOCK)):
            return False
        if rest < len(END) or rest > MAX_END or any(self._read(position, rest)):
            raise _Unreadable(
                f"{rest:,} bytes from the end mark at byte {position:,} on, which are not the end of an archive",
                f"from {len(END):,} to {MAX_END:,} bytes of zeros",
                AGAIN,
            )
        if extension is not None:
            raise _Unreadable("an extended header with no member behind it", "a member behind each", CONTEXT.fix)
        return True

    def _read(self, position: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, position)

    def _header(self, position: int) -> tarfile.TarInfo:
        block = self._read(position, BLOCK)
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            if position:
                raise _Unreadable(f"a damaged header at byte {position:,} ({error})", "whole headers", AGAIN) from None
            raise _Unreadable(*_no_archive(block)) from None
        if not POSIX.match(block):
            raise _Unreadable(
                f"a header at byte {position:,} in another form", "headers as POSIX defines them", CONTEXT.fix
            )
        if header.type == tarfile.XHDTYPE and header.size > MAX_EXTENSION:
            raise _Unreadable(
                f"an extended header at byte {position:,} of {header.size:,} bytes",
                f"at most {MAX_EXTENSION:,} bytes",
                CONTEXT.fix,
            )
        return header

    def _extension(self, position: int, size: int) -> dict[str, str]:
        """Return what an extended header says, by keyword."""
        data, said = self._read(position, size), dict[str, str]()
        while data:
            record = RECORD.match(data)
            length = int(record[1]) if record else 0
            if record is None or not record.end() < length <= len(data) or data[length - 1 : length] != b"\n":
                raise _Unreadable(
                    f"a damaged extended header at byte {position:,}", "records as POSIX defines them", AGAIN
                )
            keyword = record[2].decode(errors="backslashreplace")
            value = data[record.end() : length - 1].decode(errors="surrogateescape")
            wrong_size = keyword == "size" and not SIZE.fullmatch(value)
            if keyword in said or keyword not in {"path", "size", *IGNORED} or wrong_size:
                raise _Unreadable(
                    f"an extended header at byte {position:,} with {_shown(f'{keyword}={value}')}",
                    "each of path and size once at most, and nothing that changes how a file is read",
                    CONTEXT.fix,
                )
            said[keyword], data = value, data[length:]
        return said

    def _described(self, header: tarfile.TarInfo, extension: dict[str, str], position: int) -> tuple[str, int]:
        """Return a member's name and size; the extended header's take precedence."""
        name = extension.get("path", header.name)
        if header.type == tarfile.DIRTYPE:
            name = name.removesuffix("/")
        size = int(extension.get("size", header.size))
        if header.size not in {0, size}:
            raise _Unreadable(
                f"{_shown(name)} with two sizes, {header.size:,} and {size:,} bytes", "one size", CONTEXT.fix
            )
        if size > self._length - position and header.type not in WITHOUT_DATA:
            raise _Unreadable(
                f"{_shown(name)} of {size:,} bytes, of which the archive holds {self._length - position:,}",
                "an archive that holds every byte of its files",
                AGAIN,
            )
        return name, size

    def _take(self, kind: bytes, name: str, place: Place) -> None:
        """Enter a member into the index, or say why not."""
        if kind == tarfile.GNUTYPE_SPARSE:  # what follows is its map, and not as long as the header says
            raise _Unreadable(f"a sparse file, {_shown(name)}", "files that are there byte by byte", CONTEXT.fix)
        if kind not in (*REGULAR, tarfile.DIRTYPE):
            what = KINDS.get(kind, f"a member of type {_shown(kind.decode('latin-1'))}")
            self._refuse(name, what, "regular files and folders")
        elif wrong := _wrong_name(name):
            self._refuse(name, wrong, "relative names in UTF-8, without `.`, `..` and empty parts")
        elif name in self._places or name in self._folders:
            self._refuse(name, "a second member of this name", "each name once")
        elif kind in REGULAR:
            self._places[name] = place
        elif place.size:
            self._refuse(name, f"a folder of {place.size:,} bytes", "folders without content")
        else:
            self._folders.add(name)

    def _refuse(self, name: str, found: str, expected: str) -> None:
        self._faults.report(pointer=_shown(name), found=found, expected=expected)


def _with_others_inside(names: Iterable[str]) -> Iterator[str]:
    """Yield the names that are also folders of others.

    Sorted with the smallest character for the slash, a name stands right before those inside it. A set of all folders
    would take gigabytes for a few long names.
    """
    ordered = sorted(name.replace("/", "\0") for name in names)
    for name, following in pairwise(ordered):
        if following.startswith(f"{name}\0"):
            yield name.replace("\0", "/")


def _wrong_name(name: str) -> str | None:
    """Return what is wrong with a member's name, or ``None``."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "a name that is not UTF-8"
    if name.startswith("/"):
        return "an absolute name"
    parts = name.split("/")
    if ".." in parts:
        return "a name with `..`"
    return "a name that is not in its shortest form" if "" in parts or "." in parts or "\0" in name else None


def _shown(name: str) -> str:
    r"""Return a name in quotes on one line; bytes that are not UTF-8 as ``\udcXX``."""
    return found_text(name)


def _no_archive(block: bytes) -> tuple[str, str, str | None]:
    """Return what a file is whose first block is not a header."""
    if not block:
        return "an empty file", EXPECTED, AGAIN
    for magic, (kind, program) in COMPRESSED.items():
        if block.startswith(magic):
            return f"a file compressed with {kind}", EXPECTED, f"unpack it first ({program})"
    return "a file that is not a tar archive", EXPECTED, "check the path: name an archive, or a run directory"
