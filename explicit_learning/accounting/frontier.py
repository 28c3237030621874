"""The exact position in an append-only file that belongs to a checkpoint.

The digest is the SHA-256 of the file's first ``offset`` bytes. SHA-256 is itself a chain over blocks, so a writer that
keeps its running state pays only for what is new, at a million rows as at a thousand; and anyone can check a frontier
without this program: ``head -c OFFSET FILE | sha256sum``. Files are named relative to the run directory, so that a
copied run still resumes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.files.typed_json import document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

__all__ = ["Frontier", "Prefix", "RankFrontiers", "prefixes"]

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """A position in one file.

    Attributes:
        file: The file, as a POSIX path relative to the run directory.
        offset: Length of the prefix in bytes, header line included.
        rows: Rows in the prefix, without the header line.
        tokens: Sum of the rows' token counts.
        digest: SHA-256 of the prefix's bytes, in hexadecimal.
    """

    file: str
    offset: int
    rows: int
    tokens: int
    digest: str


@document("rank-frontiers")
@dataclass(frozen=True, slots=True, kw_only=True)
class RankFrontiers:
    """Where one rank's ledger and trace stood at a checkpoint."""

    rank: int
    ledger: Frontier
    trace: Frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The first part of a file.

    Attributes:
        offset: Its length in bytes: where it was to end, or less if the file ends before.
        lines: Ends of lines in it, that of the header among them.
        ends_line: Whether it ends with a whole line.
        state: The SHA-256 of its bytes, to be continued or read.
    """

    offset: int
    lines: int
    ends_line: bool
    state: hashlib._Hash


def prefixes(stream: BinaryIO, offsets: Iterable[int]) -> Iterator[Prefix]:
    """Yield the prefixes of an open file that end at given offsets, shortest first; the file is read once.

    Args:
        stream: The file, at its beginning.
        offsets: Lengths in bytes; the file may end before.

    Raises:
        OSError: If the file cannot be read.
    """
    state, position, lines, last = hashlib.sha256(), 0, 0, b""
    for offset in sorted(set(offsets)):
        while position < offset and (chunk := stream.read(min(offset - position, CHUNK))):
            state.update(chunk)
            position += len(chunk)
            lines += chunk.count(b"\n")
            last = chunk[-1:]
        yield Prefix(offset=position, lines=lines, ends_line=last == b"\n", state=state.copy())
