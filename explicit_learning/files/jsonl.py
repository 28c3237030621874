"""JSON Lines: one object per line, read as strictly as a plan, written in canonical form.

Canonical lines make a file's bytes a function of its rows: equal rows have equal hashes.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.git_lfs import LFS_FIX, LFS_POINTER, is_lfs_pointer
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.regular import open_regular
from explicit_learning.files.strict_json import UTF16_MARKS, parse_json

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from explicit_learning.errors import Fault

__all__ = ["bounded_lines", "matching_lines", "read_rows", "stream_rows", "write_rows"]

MAX_LINE_BYTES = 16 * 1024 * 1024
BLOCK_BYTES = 1024 * 1024


def read_rows(
    path: Path, *, gate: str, collect: Callable[[Fault], None] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(line number from 1, object)`` for every line of a file.

    Args:
        path: The file.
        gate: Name of the check, for the faults.
        collect: Is given the faults of bad lines, which are then left out; without it the first one raises. What is
            wrong with every line (UTF-16) raises in any case.

    Raises:
        Refusal: At the first line that is empty, or not a strict JSON object; or if the file cannot be read, or is a
            Git LFS pointer.
    """
    try:
        with open_regular(path) as stream:
            yield from stream_rows(stream, file=str(path), gate=gate, collect=collect)
    except OSError as error:
        raise Refusal(read_fault(error, path, gate=gate, expected="a readable JSON Lines file")) from None


def stream_rows(
    stream: BinaryIO,
    *,
    file: str,
    gate: str,
    collect: Callable[[Fault], None] | None = None,
    torn_end: bool = False,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of an open file (see `read_rows`).

    Args:
        stream: The file.
        file: Its name, for the faults.
        gate: Name of the check, for the faults.
        collect: Is given the faults of bad lines, as in `read_rows`.
        torn_end: Whether a last line without its end is not a row yet, and is left out.

    Raises:
        Refusal: As `read_rows`.
        OSError: If the file cannot be read.
    """
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if torn_end and len(line) <= MAX_LINE_BYTES and not line.endswith(b"\n"):
            return
        if number == 1 and is_lfs_pointer(line):
            at = Context(gate=gate, file=file)
            raise at.refusal(found=LFS_POINTER, expected="a JSON Lines file", fix=LFS_FIX)
        if number == 1 and collect is not None and line.startswith(BOM_UTF8):
            collect(_bom_fault(file, gate))
            line = line.removeprefix(BOM_UTF8)
        try:
            row = _row(line, number, file, gate)
        except Refusal as refusal:
            if collect is None or len(line) > MAX_LINE_BYTES or (number == 1 and line.startswith(UTF16_MARKS)):
                raise
            for fault in refusal.faults:
                collect(fault)
        else:
            yield number, row


def bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of an open file that may hold anything; one of more than 16 MiB without what is beyond that.

    A line that ends is yielded with its end, so that one that is torn can be told from it.

    Raises:
        OSError: If the file cannot be read.
    """
    while line := stream.readline(MAX_LINE_BYTES):
        part = line
        while part and not part.endswith(b"\n"):
            part = stream.readline(MAX_LINE_BYTES)
        yield line if line.endswith(b"\n") or not part else line + b"\n"


def _bom_fault(file: str, gate: str) -> Fault:
    found, fix = "a UTF-8 byte-order mark", "save the file as UTF-8 without BOM"
    return Context(gate=gate, file=f"{file}:1").fault(
        pointer="", found=found, expected="UTF-8 without a byte-order mark", fix=fix
    )


def matching_lines(stream: BinaryIO, pattern: re.Pattern[bytes], *, most: int) -> Iterator[bytes]:
    """Yield the lines, without their ends, in which a pattern is found; the others cost next to nothing.

    No more than a block and a line is held, whatever the file's length.

    Args:
        stream: The open file, which may hold anything.
        pattern: What to look for; it matches no line end and no empty text.
        most: Longest line that is yielded; longer ones are left out. Unit: bytes.

    Raises:
        OSError: If the file cannot be read.
    """
    rest, is_too_long = b"", False
    while block := stream.read(BLOCK_BYTES):
        if is_too_long:
            _, end, block = block.partition(b"\n")
            if not end:
                continue
        whole, end, rest = (rest + block).rpartition(b"\n")
        yield from _matches(whole, pattern, most)
        if is_too_long := len(rest) > most:
            rest = b""
    yield from _matches(rest, pattern, most)


def _matches(text: bytes, pattern: re.Pattern[bytes], most: int) -> Iterator[bytes]:
    start = 0
    while match := pattern.search(text, start):
        begin = max(start, text.rfind(b"\n", start, match.start()) + 1)
        end = text.find(b"\n", match.end())
        start = len(text) if end < 0 else end
        if start - begin <= most:
            yield text[begin:start]


def _row(line: bytes, number: int, file: str, gate: str) -> dict[str, Any]:
    at = Context(gate=gate, file=f"{file}:{number}")
    if len(line) > MAX_LINE_BYTES:
        found, expected = f"a line of more than {MAX_LINE_BYTES:,} bytes", f"at most {MAX_LINE_BYTES:,} bytes per line"
        raise at.refusal(found=found, expected=expected, fix="check that this is a JSON Lines file")
    if not line.endswith(b"\n"):
        fix = "make the file again, for it looks truncated, or add the final newline"
        raise at.refusal(found="a last line without a newline", expected="every line ends with a newline", fix=fix)
    if not line.strip():
        raise at.refusal(found="an empty line", expected="one JSON object per line", fix="remove the line")
    value = parse_json(line, gate=gate, file=str(at.file))
    if not isinstance(value, dict):
        raise at.refusal(found=found_text(value), expected="a JSON object", fix="write one JSON object per line")
    return value


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows in canonical form, one per line, whole or not at all.

    Raises:
        OSError: If the file cannot be written.
    """
    write_bytes(path, b"".join(canonical_bytes(row) + b"\n" for row in rows))
