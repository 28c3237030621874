"""Digests of a rank's training state, as a checkpoint holds them.

They are taken from the live state while the checkpoint is written, not from its files: what a later process must find
again is what this one computed with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Refusal
from explicit_learning.files.atomic import write_json
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Components", "read_state_digests", "write_state_digests"]

GATE = "resume-audit"
SCHEMA_VERSION = 1

# Digest of each component of a rank's training state by its name in schemas/state-digests.schema.json; None if absent.
Components = dict[str, str | None]


def state_digests_name(rank: int) -> str:
    """Return the name of a rank's state digests in a checkpoint."""
    return f"state-digests-rank-{rank}.json"


def write_state_digests(folder: Path, *, rank: int, step: int, components: Components) -> None:
    """Write a rank's digests into a checkpoint that is being made; its mark will cover them.

    Raises:
        OSError: If the file cannot be written.
    """
    document = {"schema_version": SCHEMA_VERSION, "rank": rank, "step": step, "components": components}
    write_json(folder / state_digests_name(rank), document)


def read_state_digests(folder: Path, rank: int) -> Components:
    """Return the digests that a checkpoint holds of a rank.

    Raises:
        Refusal: If the file is missing or breaks its schema.
    """
    path = folder / state_digests_name(rank)
    document = load_json(path, gate=GATE)
    if faults := validate(document, "state-digests", gate=GATE, file=str(path)):
        raise Refusal(faults)
    components: Components = document["components"]
    return components
