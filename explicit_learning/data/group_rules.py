"""Rules between rows: a group is whole and consistent, and no item is both trained and evaluated on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from explicit_learning.data.answers import ABSTENTION, answers_equal
from explicit_learning.data.rows import ImageRef, Relation, SftRow, SlotRow
from explicit_learning.errors import found_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from explicit_learning.errors.collector import FaultCollector

__all__ = [
    "Located",
    "check_leakage",
    "check_sft_against_slots",
    "check_sft_groups",
    "check_slot_groups",
    "shared_items",
]

RowT = TypeVar("RowT")
KeyT = TypeVar("KeyT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Located(Generic[RowT]):
    """A row and its place, as ``FILE:LINE``."""

    where: str
    row: RowT


def check_slot_groups(slots: Sequence[Located[SlotRow]], faults: FaultCollector, *, is_whole: bool = True) -> None:
    """Report duplicate slots, and groups that are not whole or contradict themselves.

    Args:
        slots: The rows of a file.
        faults: Takes what is wrong.
        is_whole: Whether these are all rows of the file; otherwise nothing is reported that a missing one explains.
    """
    for first, second in _repeated(slots, lambda row: row.slot_id):
        faults.report(
            file=second.where,
            pointer="/slot_id",
            found=f"{found_text(second.row.slot_id)} again, after {first.where}",
            expected="every slot id once",
            fix="remove the duplicate, or rename it",
        )
    for first, second in _repeated(slots, lambda row: (row.group_id, row.selected_view.view_id)):
        faults.report(
            file=second.where,
            pointer="/selected_view/view_id",
            found=f"view {found_text(second.row.selected_view.view_id)} of group {found_text(second.row.group_id)} "
            f"again, after {first.where}",
            expected="every (group, view) once",
            fix="remove the duplicate: a slot is a view, not a draw from it",
        )
    for members in _grouped(slots, lambda row: row.group_id).values():
        _check_slot_group(members, faults, is_whole=is_whole)


# Fields that all rows of a group share; its FULL row sets them.
_SHARED = ("base_id", "question", "choices", "answer_type", "full_view")


def _check_slot_group(members: Sequence[Located[SlotRow]], faults: FaultCollector, *, is_whole: bool) -> None:
    full = [member for member in members if member.row.relation is Relation.FULL]
    first = full[0] if full else members[0]
    group = found_text(first.row.group_id)
    if is_whole and not full:
        present = ", ".join(sorted({member.row.relation.value for member in members}))
        faults.report(
            file=first.where,
            pointer="/relation",
            found=f"group {group} without a FULL slot (it has {present})",
            expected="exactly one FULL slot per group",
            fix="add the slot that shows the full view, or drop the group",
        )
    for member in full[1:]:
        faults.report(
            file=member.where,
            pointer="/relation",
            found=f"a second FULL slot of group {group}, after {first.where}",
            expected="exactly one FULL slot per group",
            fix="remove one, or give it a group of its own",
        )
    for member in members:
        _check_member(member, first, faults)
    if is_whole:
        _check_substitutes(members, faults)


def _check_member(member: Located[SlotRow], first: Located[SlotRow], faults: FaultCollector) -> None:
    if member is first:
        return
    for name in _SHARED:
        if getattr(member.row, name) != getattr(first.row, name):
            faults.report(
                file=member.where,
                pointer=f"/{name}",
                found=f"another {name} than {first.where}, which is of the same group {found_text(first.row.group_id)}",
                expected="one value in all slots of a group",
                fix="make them agree, or give the slot a group of its own",
            )
    if member.row.full_answer != first.row.full_answer:
        relation = member.row.relation
        why = "; a CONTROL view leaves the answer as it is" if relation is Relation.CONTROL else ""
        faults.report(
            file=member.where,
            pointer="/full_answer",
            found=f"{found_text(member.row.full_answer)} in a {relation.value} slot, but "
            f"{found_text(first.row.full_answer)} at {first.where}",
            expected=f"the group's full answer{why}",
            fix="make them agree; a view whose evidence has another answer is a SUBSTITUTE",
        )


def _check_substitutes(members: Sequence[Located[SlotRow]], faults: FaultCollector) -> None:
    answers = {member.row.substitute_answer for member in members if member.row.relation is Relation.SUBSTITUTE}
    for member in members:
        answer = member.row.substitute_answer
        if answer is not None and answers and answer not in answers:
            faults.report(
                file=member.where,
                pointer="/substitute_answer",
                found=f"{found_text(answer)}, which no SUBSTITUTE slot of group {found_text(member.row.group_id)} has",
                expected=f"one of {', '.join(sorted(found_text(known) for known in answers))}",
                fix="make it agree with the SUBSTITUTE slot, or remove it",
            )


def check_sft_groups(rows: Sequence[Located[SftRow]], faults: FaultCollector) -> None:
    """Report duplicate certificates, second FULL views, and targets that contradict their group."""
    for first, second in _repeated(rows, lambda row: row.record_id):
        faults.report(
            file=second.where,
            pointer="/record_id",
            found=f"{found_text(second.row.record_id)} again, after {first.where}",
            expected="every record id once",
            fix="remove the duplicate, or rename it",
        )
    for first, second in _repeated(rows, lambda row: (row.record_kind, row.group_id, row.view_id)):
        faults.report(
            file=second.where,
            pointer="/view_id",
            found=f"view {found_text(second.row.view_id)} of group {found_text(second.row.group_id)} again, after "
            f"{first.where}",
            expected="every (group, view) once in the rows of an arm",
            fix="remove the duplicate",
        )
    for members in _grouped(rows, lambda row: (row.record_kind, row.group_id)).values():
        _check_sft_group(members, faults)


def _check_sft_group(members: Sequence[Located[SftRow]], faults: FaultCollector) -> None:
    full = [member for member in members if member.row.relation is Relation.FULL]
    for member in full[1:]:
        if member.row.view_id != full[0].row.view_id:
            faults.report(
                file=member.where,
                pointer="/relation",
                found=f"a second FULL view of group {found_text(member.row.group_id)}, after {full[0].where}",
                expected="at most one FULL view per group",
                fix="remove one, or give it a group of its own",
            )
    if not full:
        return
    gold = full[0].row.target
    for member in members:
        row = member.row
        same = answers_equal(row.target, gold, row.answer_type, row.choices).equal
        if row.relation is Relation.CONTROL and not same:
            found, expected = f"{found_text(row.target)} for CONTROL", f"FULL's answer, {found_text(gold)}"
        elif row.relation is Relation.SUBSTITUTE and same:
            found, expected = f"{found_text(row.target)} for SUBSTITUTE, which is FULL's answer", "another answer"
        elif row.relation is Relation.MISSING and gold == ABSTENTION:
            found, expected = "MISSING beside a FULL view that is an abstention", "a FULL view that has an answer"
        else:
            continue
        fix = f"compare with {full[0].where}, and correct the target or the relation"
        faults.report(file=member.where, pointer="/target", found=found, expected=expected, fix=fix)


def check_sft_against_slots(
    rows: Iterable[Located[SftRow]], slots: Iterable[Located[SlotRow]], faults: FaultCollector
) -> None:
    """Report certificates whose target is another than that of the slot for the same view."""
    known = {(slot.row.group_id, slot.row.selected_view.view_id): slot for slot in slots}
    for located in rows:
        row = located.row
        slot = known.get((row.group_id, row.view_id))
        if slot is None or (slot.row.relation is Relation.SUBSTITUTE and slot.row.substitute_answer is None):
            continue
        if not answers_equal(row.target, slot.row.target, row.answer_type, row.choices).equal:
            faults.report(
                file=located.where,
                pointer="/target",
                found=f"{found_text(row.target)}, but {found_text(slot.row.target)} is right at {slot.where}",
                expected="one answer for one view",
                fix="make the certificate and the slot agree",
            )


def check_leakage(
    trained: Iterable[Located[SlotRow] | Located[SftRow]],
    evaluated: Iterable[Located[SlotRow]],
    faults: FaultCollector,
) -> None:
    """Report held-out rows whose base item, group or full image is also trained on."""
    seen: dict[tuple[str, str], str] = {}
    for located in trained:
        for key in _traces(located.row):
            seen.setdefault(key, located.where)
    for located in evaluated:
        for pointer, key in zip(_trace_pointers(located.row), _traces(located.row), strict=True):
            where = seen.get(key)
            if where is not None:
                faults.report(
                    file=located.where,
                    pointer=pointer,
                    found=f"evaluation leakage: {found_text(key[1])} is trained on at {where}",
                    expected="held-out items that training never sees",
                    fix="remove the item from one of the two",
                )


def shared_items(
    trained: Iterable[Located[SlotRow] | Located[SftRow]], asked: Iterable[Located[SlotRow]]
) -> list[Located[SlotRow]]:
    """Return the questions whose base item, group or full image is also trained on, in their order."""
    seen = {key for located in trained for key in _traces(located.row)}
    return [located for located in asked if not seen.isdisjoint(_traces(located.row))]


def _traces(row: SlotRow | SftRow) -> list[tuple[str, str]]:
    """Return what would give a held-out item away: its names, and the bytes of its full images."""
    images: tuple[ImageRef, ...] = ()
    if isinstance(row, SlotRow):
        images = row.full_view.images
    elif row.relation is Relation.FULL:
        images = row.images
    return [("base", row.base_id), ("group", row.group_id), *(("image", image.sha256) for image in images)]


def _trace_pointers(row: SlotRow) -> list[str]:
    count = len(row.full_view.images)
    return ["/base_id", "/group_id", *(f"/full_view/images/{position}/sha256" for position in range(count))]


def _grouped(rows: Iterable[Located[RowT]], key: Callable[[RowT], KeyT]) -> dict[KeyT, list[Located[RowT]]]:
    groups: dict[KeyT, list[Located[RowT]]] = {}
    for located in rows:
        groups.setdefault(key(located.row), []).append(located)
    return groups


def _repeated(
    rows: Iterable[Located[RowT]], key: Callable[[RowT], object]
) -> Iterable[tuple[Located[RowT], Located[RowT]]]:
    """Yield (first, later) for every row whose key an earlier one has."""
    first: dict[object, Located[RowT]] = {}
    for located in rows:
        earlier = first.setdefault(key(located.row), located)
        if earlier is not located:
            yield earlier, located
