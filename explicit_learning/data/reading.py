"""Rows files read as a stream: strict JSON, then the schema, then the row's own rules.

The wrong split is named before anything else is said about a row: training on what is meant for evaluation is the one
mistake that makes results look better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from explicit_learning.data.group_rules import Located, check_sft_groups, check_slot_groups
from explicit_learning.data.row_rules import check_sft, check_slot
from explicit_learning.data.rows import SftRow, SlotRow, sft_from_json, slot_from_json
from explicit_learning.errors import Fault, Refusal, found_text
from explicit_learning.errors.collector import FaultCollector
from explicit_learning.files.compiled_schema import compiled_schema
from explicit_learning.files.jsonl import read_rows
from explicit_learning.files.schema import validate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from explicit_learning.data.row_rules import Report

__all__ = ["read_sft_rows", "read_slot_rows", "stream_sft", "stream_slots"]

RowT = TypeVar("RowT", SlotRow, SftRow)
Split = Literal["train", "evaluation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form(Generic[RowT]):
    """A kind of file: its schema, the field with a row's name, its split, and how rows are made and checked."""

    schema: str
    id_field: str
    split: Split
    from_json: Callable[[dict[str, Any]], RowT]
    check: Callable[[RowT, Report], None]


_SLOTS = _Form(schema="slot-row", id_field="slot_id", split="train", from_json=slot_from_json, check=check_slot)
_EVALUATION = replace(_SLOTS, schema="evaluation-row", split="evaluation")
_SFT = _Form(schema="sft-row", id_field="record_id", split="train", from_json=sft_from_json, check=check_sft)


def read_slot_rows(path: Path, *, split: Split = "train", gate: str = "data") -> tuple[SlotRow, ...]:
    """Read and check a whole slots file, or an evaluation file.

    Raises:
        Refusal: With everything that is wrong in it; images are not looked at.
    """
    faults = FaultCollector(gate)
    rows = list(stream_slots(path, faults, split=split))
    check_slot_groups(rows, faults)
    return _rows_or_refusal(rows, faults)


def read_sft_rows(path: Path, *, gate: str = "data") -> tuple[SftRow, ...]:
    """Read and check a whole SFT file.

    Raises:
        Refusal: With everything that is wrong in it; images are not looked at.
    """
    faults = FaultCollector(gate)
    rows = list(stream_sft(path, faults))
    check_sft_groups(rows, faults)
    return _rows_or_refusal(rows, faults)


def stream_slots(path: Path, faults: FaultCollector, *, split: Split = "train") -> Iterator[Located[SlotRow]]:
    """Yield the rows of a slots or evaluation file that have the right form; what is wrong goes to ``faults``."""
    return _stream(path, _SLOTS if split == "train" else _EVALUATION, faults)


def stream_sft(path: Path, faults: FaultCollector) -> Iterator[Located[SftRow]]:
    """Yield the rows of an SFT file that have the right form; what is wrong goes to ``faults``."""
    return _stream(path, _SFT, faults)


def _stream(path: Path, form: _Form[RowT], faults: FaultCollector) -> Iterator[Located[RowT]]:
    fits = compiled_schema(form.schema)
    try:
        for number, value in read_rows(path, gate=faults.gate, collect=faults.add):
            where = f"{path}:{number}"
            if not fits(value):
                faults.explain(partial(_explain, value, form, where, faults.gate))
                continue
            row = form.from_json(value)
            form.check(row, _RowReport(faults, where, value[form.id_field]))
            yield Located(where=where, row=row)
    except Refusal as refusal:
        faults.extend(refusal.faults)


class _RowReport:
    """Adds to a row's faults where the row stands and what it is called."""

    __slots__ = ("_faults", "_name", "_where")

    def __init__(self, faults: FaultCollector, where: str, name: str) -> None:
        self._faults, self._where, self._name = faults, where, name

    def __call__(self, pointer: str, found: str, expected: str, fix: str) -> None:
        self._faults.report(
            file=self._where, pointer=pointer, found=f"{found} ({self._name})", expected=expected, fix=fix
        )


def _explain(value: dict[str, Any], form: _Form[RowT], where: str, gate: str) -> Iterator[Fault]:
    name = value.get(form.id_field)
    suffix = f" ({name})" if isinstance(name, str) else ""
    for fault in validate(value, form.schema, gate=gate, file=where):
        if fault.pointer == "/split" and isinstance(value.get("split"), str):
            yield _leakage(fault, value["split"], form.split, suffix)
        else:
            yield replace(fault, found=f"{fault.found}{suffix}")


def _leakage(fault: Fault, found: str, split: Split, suffix: str) -> Fault:
    if split == "evaluation":
        return replace(
            fault,
            found=f"split {found_text(found)}{suffix}",
            expected='"evaluation" in a file of held-out rows',
            fix="move the row to a training file, or correct its split",
        )
    return replace(
        fault,
        found=f"evaluation leakage: split {found_text(found)}{suffix}",
        expected='"train" in every row that is trained on',
        fix="remove the row from the training file",
    )


def _rows_or_refusal(rows: list[Located[RowT]], faults: FaultCollector) -> tuple[RowT, ...]:
    if found := faults.faults():
        raise Refusal(found)
    return tuple(located.row for located in rows)
