"""The part of a plan that freezing writes about validation: which questions are held out, how many, and their hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.data.dataset import slots_file
from explicit_learning.errors import Context
from explicit_learning.inputs.held_out import held_out_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.data.dataset_manifest import RowsFile
    from explicit_learning.freeze.draft_data import DraftData

__all__ = ["measured_validation", "with_present_slots"]

CONTEXT = Context(gate="data")


def measured_validation(
    validation: dict[str, Any], data: DraftData, *, rows: Callable[[RowsFile], dict[str, str]], file: Path
) -> dict[str, Any]:
    """Return a filled draft's group with the file of slots, and with the counts and the hash of what is held out.

    Args:
        validation: The group.
        data: The data that the draft stands for.
        rows: Names a file of rows as a plan does: by path and hash.
        file: The draft.

    Raises:
        Refusal: If the dataset has no slots.
    """
    if (entry := slots_file(data.manifest)) is None:
        raise CONTEXT.refusal(
            file=file,
            pointer="/validation",
            found="a dataset without slots",
            expected="slots: validation asks those of some groups, in SFT arms too",
            fix="add slots to the dataset, or set validation to null",
        )
    held_out = held_out_of(data.checked.slots, share=validation["share"], seed=validation["seed"])
    return validation | {
        "slots": rows(entry),
        "groups": len(held_out.groups),
        "questions": len(held_out.questions),
        "questions_sha256": held_out.sha256,
    }


def with_present_slots(plan: dict[str, Any], data: DraftData) -> dict[str, Any]:
    """Return a plan that names the file of slots by the absolute path where it lies now, if the plan names it at all.

    The embedded digits get the place that the plan names for them only when the plan is in order.
    """
    entry = slots_file(data.manifest)
    if plan["validation"] is None or entry is None:
        return plan
    slots = {"path": str(data.path(entry).resolve()), "sha256": entry.sha256}
    return plan | {"validation": plan["validation"] | {"slots": slots}}
