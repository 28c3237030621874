"""The exact position in an append-only file that belongs to a checkpoint.

The digest is the SHA-256 of the file's first ``offset`` bytes. SHA-256 is itself a chain over blocks, so a writer that
keeps its running state pays only for what is new, at a million rows as at a thousand; and anyone can check a frontier
without this program: ``head -c OFFSET FILE | sha256sum``. Files are named relative to the run directory, so that a
copied run still resumes.
"""

from __future__ import annotations

from dataclasses import dataclass

from explicit_learning.files.typed_json import document

__all__ = ["Frontier", "RankFrontiers"]


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
