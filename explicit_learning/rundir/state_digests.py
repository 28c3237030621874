"""Digests of a rank's training state, as a checkpoint holds them.

They are taken from the live state while the checkpoint is written, not from its files: what a later process must find
again is what this one computed with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.files.typed_json import MAYBE_OTHER_VERSION, document, read_document, write_document
from explicit_learning.rundir.layout import state_digests_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Components", "StateDigests", "read_state_digests", "write_state_digests"]

GATE = "resume-audit"
FIX = f"restore the checkpoint's folder from a copy, or remove it to resume from an older one; {MAYBE_OTHER_VERSION}"
SCHEMA_VERSION = 1

# Digest of each component of a rank's training state by its name in schemas/state-digests.schema.json; None if absent.
Components = dict[str, str | None]


@document("state-digests")
@dataclass(frozen=True, slots=True, kw_only=True)
class StateDigests:
    """The digests of one rank at one checkpoint.

    Attributes:
        rank: The rank.
        step: Optimizer steps done.
        components: Digest of each component by name.
    """

    schema_version: int = SCHEMA_VERSION
    rank: int
    step: int
    components: Components


def write_state_digests(folder: Path, digests: StateDigests) -> None:
    """Write a rank's digests into a checkpoint that is being made; its mark will cover them.

    Raises:
        Refusal: If they break their schema (exit code 70).
        OSError: If the file cannot be written.
    """
    write_document(folder / state_digests_file(digests.rank), digests, gate=GATE)


def read_state_digests(folder: Path, rank: int) -> StateDigests:
    """Return the digests that a checkpoint holds of a rank.

    Raises:
        Refusal: If the file is missing or breaks its schema.
    """
    return read_document(folder / state_digests_file(rank), StateDigests, gate=GATE, fix=FIX)
