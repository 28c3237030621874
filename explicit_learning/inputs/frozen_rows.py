"""The rows that a plan was frozen with, read again after the gates: by each rank on its own node, and at the end.

What lies at a path may change while a run trains. So whoever reads the rows compares their identity with the plan's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.data.reading import read_sft_rows, read_slot_rows
from explicit_learning.data.slots import slot_manifest_sha256
from explicit_learning.errors import Context
from explicit_learning.files.hashing import sha256_file

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.data.rows import SftRow, SlotRow
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["read_frozen_sft_rows", "read_frozen_slots"]

CONTEXT = Context(
    gate="data", fix="restore the rows that the plan was frozen with, or freeze the draft again with these"
)


def read_frozen_slots(file: Path, plan: Plan) -> tuple[SlotRow, ...]:
    """Read the slots of an RL plan.

    Args:
        file: The file of rows.
        plan: The plan.

    Raises:
        Refusal: If the file cannot be read, or holds other slots than were frozen.
    """
    slots = read_slot_rows(file)
    _require("/data/slot_manifest_sha256", file, slot_manifest_sha256(slots), str(plan.data.slot_manifest_sha256))
    return slots


def read_frozen_sft_rows(file: Path, plan: Plan) -> tuple[SftRow, ...]:
    """Read the rows of an SFT plan.

    Args:
        file: The file of rows.
        plan: The plan.

    Raises:
        Refusal: If the file cannot be read, or is another file than was frozen.
    """
    _require("/data/dataset/sha256", file, sha256_file(file), plan.data.dataset.sha256)
    return read_sft_rows(file)


def _require(pointer: str, file: Path, found: str, expected: str) -> None:
    if found != expected:
        raise CONTEXT.refusal(file=file, pointer=pointer, found=found, expected=expected)
