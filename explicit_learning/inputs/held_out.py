"""The questions that a plan holds out for validation: which they are, and whether enough is left to train on.

They are the slots of some groups of the dataset, in SFT arms too: so all arms that start from one dataset, and the SFT
stage before them, are validated on the same questions. Rows of these groups leave the training order of every arm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.data.group_rules import shared_items
from explicit_learning.data.held_out import held_out_groups, without_groups
from explicit_learning.data.reading import read_slot_rows
from explicit_learning.data.slots import slot_manifest_sha256
from explicit_learning.errors import Context, found_text
from explicit_learning.plan.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.arms import Arm
    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.data.rows import SlotRow
    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Plan, Validation

__all__ = [
    "NOTHING",
    "HeldOut",
    "HeldOutPart",
    "held_out_of",
    "held_out_of_document",
    "leakage_warnings",
    "read_held_out",
    "trained_part",
]

CONTEXT = Context(gate="data")
REFREEZE = "restore the rows that the plan was frozen with, or freeze the draft again with these"
SHARE = "/validation/share"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What is held out of a dataset.

    Attributes:
        groups: The groups.
        questions: Their slots, sorted by slot id; each asks about its selected view.
    """

    groups: frozenset[str]
    questions: tuple[SlotRow, ...]

    @cached_property
    def sha256(self) -> str:
        """The questions' identity, which no order of rows changes."""
        return slot_manifest_sha256(self.questions)


NOTHING = HeldOut(groups=frozenset(), questions=())


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPart:
    """What a plan, or a filled draft, says about the part that is held out.

    Attributes:
        share: Share of the groups.
        seed: Seed of their choice.
        slots_per_cycle: Slot visits of an RL arm in a generation cycle, over all ranks.
        frozen: The plan's group; ``None`` for a draft, whose counts and hash are not made yet.
    """

    share: float
    seed: int
    slots_per_cycle: int
    frozen: Validation | None = None

    @classmethod
    def of_document(cls, plan: dict[str, Any], frozen: Validation | None = None) -> HeldOutPart | None:
        """Return that of a document whose fields have passed the schema; ``None`` without validation."""
        if (validation := plan.get("validation")) is None:
            return None
        return cls(
            share=validation["share"],
            seed=validation["seed"],
            slots_per_cycle=Geometry.of_document(plan).slots_per_cycle,
            frozen=frozen,
        )

    def faults(self, slots: Sequence[SlotRow], held_out: HeldOut, *, arm: Arm, file: str) -> list[Fault]:
        """Return why this part cannot be held out of a dataset, or is another than was frozen.

        Args:
            slots: All slots of the dataset.
            held_out: What is held out of them.
            arm: The plan's arm. Whether an SFT arm has rows enough, the count of its pass says.
            file: The plan or draft.
        """
        faults = _share_faults(self, slots, held_out, arm=arm, file=file)
        return faults or ([] if self.frozen is None else _frozen_faults(held_out, self.frozen, file=file))


def held_out_of(slots: Sequence[SlotRow], *, share: float, seed: int) -> HeldOut:
    """Return what a share and a seed hold out of a dataset's slots."""
    groups = held_out_groups((slot.group_id for slot in slots), share=share, seed=seed)
    questions = sorted((slot for slot in slots if slot.group_id in groups), key=lambda slot: slot.slot_id)
    return HeldOut(groups=groups, questions=tuple(questions))


def read_held_out(file: Path | None, plan: Plan) -> HeldOut:
    """Read what a plan holds out; nothing in a plan without validation.

    Args:
        file: The dataset's file of slots; ``None`` without validation.
        plan: The plan.

    Raises:
        Refusal: If the file cannot be read, or other questions are held out than were frozen.
    """
    validation = plan.validation
    if validation is None:
        return NOTHING
    if file is None:
        raise AssertionError("a plan with validation names its file of slots")
    found = held_out_of(read_slot_rows(file), share=validation.share, seed=validation.seed)
    if found.sha256 != validation.questions_sha256:
        raise CONTEXT.refusal(
            file=file,
            pointer="/validation/questions_sha256",
            found=found.sha256,
            expected=validation.questions_sha256,
            fix=REFREEZE,
        )
    return found


def held_out_of_document(plan: dict[str, Any]) -> HeldOut:
    """Return what a plan's document holds out; nothing in one without validation.

    Args:
        plan: A plan, or a filled draft, that names the file of slots by its absolute path.

    Raises:
        Refusal: If the file cannot be read.
    """
    validation = plan.get("validation")
    if validation is None:
        return NOTHING
    slots = read_slot_rows(Path(validation["slots"]["path"]))
    return held_out_of(slots, share=validation["share"], seed=validation["seed"])


def trained_part(checked: CheckedDataset, held_out: HeldOut) -> CheckedDataset:
    """Return a dataset without the rows that are held out: what its arms train on."""
    if not held_out.groups:
        return checked
    return replace(
        checked,
        located_slots=tuple(item for item in checked.located_slots if item.row.group_id not in held_out.groups),
        located_sft=tuple(item for item in checked.located_sft if item.row.group_id not in held_out.groups),
    )


def _share_faults(
    part: HeldOutPart, slots: Sequence[SlotRow], held_out: HeldOut, *, arm: Arm, file: str
) -> list[Fault]:
    groups, held = len({slot.group_id for slot in slots}), len(held_out.groups)
    left = len(without_groups(slots, held_out.groups))
    context, told = CONTEXT.at(file), f"{part.share:g} of {groups} groups"
    if held == 0:
        fix = f"set it to at least {1 / groups:.2g}" if groups > 1 else "set validation to null"
        found = f"{told}, which rounds to 0 groups"
        return [context.fault(pointer=SHARE, found=found, expected="at least one group", fix=fix)]
    if held == groups:
        fix = (
            f"set it to at most {math.floor(100 * (groups - 1) / groups) / 100:g}, so that a group is left to train on"
        )
        return [context.fault(pointer=SHARE, found=f"{told}: all of them", expected="at most all but one", fix=fix)]
    if not arm.is_sft and left < part.slots_per_cycle:
        return [
            context.fault(
                pointer=SHARE,
                found=f"{told}: {held} are held out, and {left} slots are left",
                expected=f"at least {part.slots_per_cycle} slots, the slot visits of one step",
                fix="lower it, lower optimisation.per_device_batch_size, or add slots",
            )
        ]
    return []


def _frozen_faults(held_out: HeldOut, validation: Validation, *, file: str) -> list[Fault]:
    """Return where a plan's counts and hash of held-out questions are not those of its dataset."""
    compared = (
        ("groups", validation.groups, len(held_out.groups)),
        ("questions", validation.questions, len(held_out.questions)),
        ("questions_sha256", validation.questions_sha256, held_out.sha256),
    )
    return [
        CONTEXT.fault(
            file=file,
            pointer=f"/validation/{name}",
            found=found_text(stated),
            expected=f"{found}, as share and seed hold out of the dataset",
            fix="freeze the draft again",
        )
        for name, stated, found in compared
        if stated != found
    ]


def leakage_warnings(checked: CheckedDataset, held_out: HeldOut, arm: Arm) -> list[str]:
    """Return a warning if rows that an arm trains on share a base item or a full image with held-out questions.

    Args:
        checked: The whole dataset.
        held_out: What is held out.
        arm: The plan's arm.
    """
    trained = trained_part(checked, held_out)
    rows = [item for item in trained.located_sft if item.row.record_kind == arm.sft_rows]
    asked = [item for item in checked.located_slots if item.row.group_id in held_out.groups]
    if not (shared := shared_items(rows if arm.is_sft else trained.located_slots, asked)):
        return []
    return [
        (
            f"/validation: {len(shared)} of {len(asked)} held-out questions share a base item or a full image "
            "with rows that are trained on"
        )
    ]
