"""The exact position in an append-only file that belongs to a checkpoint.

The digest is the SHA-256 of the file's first ``offset`` bytes. SHA-256 is itself a chain over blocks, so a writer that
keeps its running state pays only for what is new, at a million rows as at a thousand; and anyone can check a frontier
without this program: ``head -c OFFSET FILE | sha256sum``. Files are named relative to the run directory, so that a
copied run still resumes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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

    def to_json(self) -> dict[str, Any]:
        """Return the frontier in the form of ``schemas/frontier.schema.json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Frontier:
        """Build a frontier from JSON that has passed its schema."""
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFrontiers:
    """Where one rank's ledger and trace stood at a checkpoint."""

    rank: int
    ledger: Frontier
    trace: Frontier

    def to_json(self) -> dict[str, Any]:
        """Return the frontiers as they stand in a checkpoint's mark."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RankFrontiers:
        """Build frontiers from JSON that has passed its schema."""
        ledger, trace = Frontier.from_json(value["ledger"]), Frontier.from_json(value["trace"])
        return cls(rank=value["rank"], ledger=ledger, trace=trace)
