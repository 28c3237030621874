"""Rows files read line by line: strict JSON, then the schema, then the row's own rules.

A wrong split has a message of its own: training on what is meant for evaluation is the one mistake that makes results
look better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from explicit_learning.data.group_rules import Located, check_sft_groups, check_slot_groups
from explicit_learning.data.row_rules import sft_row_faults, slot_row_faults
from explicit_learning.data.rows import SftRow, SlotRow, sft_from_json, slot_from_json
from explicit_learning.errors import Refusal, found_text
from explicit_learning.errors.collector import FaultCollector
from explicit_learning.files.compiled_schema import compiled_schema
from explicit_learning.files.jsonl import read_rows
from explicit_learning.files.schema import validate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from explicit_learning.errors import Context, Fault

__all__ = ["FileRows", "load_sft_rows", "load_slot_rows", "read_sft_rows", "read_slot_rows"]
__all__ += ["stream_sft_rows", "stream_slot_rows"]

GATE = "data"
RowT = TypeVar("RowT", SlotRow, SftRow)
Split = Literal["train", "evaluation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form(Generic[RowT]):
    """A kind of file: its schema, the field with a row's name, its split, and how rows are made and checked."""

    schema: str
    id_field: str
    split: Split
    from_json: Callable[[dict[str, Any]], RowT]
    faults: Callable[[RowT, Context], Iterator[Fault]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows(Generic[RowT]):
    """What could be read of a file.

    Attributes:
        rows: The rows of the right form, in the file's order.
        is_whole: Whether these are all rows; otherwise, what seems to be missing may be in a row that was left out.
    """

    rows: list[Located[RowT]]
    is_whole: bool


_SLOTS = _Form(schema="slot-row", id_field="slot_id", split="train", from_json=slot_from_json, faults=slot_row_faults)
_EVALUATION = replace(_SLOTS, schema="evaluation-row", split="evaluation")
_SFT = _Form(schema="sft-row", id_field="record_id", split="train", from_json=sft_from_json, faults=sft_row_faults)


def read_slot_rows(path: Path, *, split: Split = "train") -> tuple[SlotRow, ...]:
    """Read and check a whole slots file, or an evaluation file.

    Raises:
        Refusal: With everything that is wrong in it; images are not looked at.
    """
    faults = FaultCollector(GATE)
    read = load_slot_rows(path, faults, split=split)
    check_slot_groups(read.rows, faults, is_whole=read.is_whole)
    return _rows_or_refusal(read.rows, faults)


def read_sft_rows(path: Path) -> tuple[SftRow, ...]:
    """Read and check a whole SFT file.

    Raises:
        Refusal: With everything that is wrong in it; images are not looked at.
    """
    faults = FaultCollector(GATE)
    read = load_sft_rows(path, faults)
    check_sft_groups(read.rows, faults)
    return _rows_or_refusal(read.rows, faults)


def load_slot_rows(path: Path, faults: FaultCollector, *, split: Split = "train") -> FileRows[SlotRow]:
    """Return the rows of a slots or evaluation file that have the right form; what is wrong goes to ``faults``."""
    return _load(path, _SLOTS if split == "train" else _EVALUATION, faults)


def load_sft_rows(path: Path, faults: FaultCollector) -> FileRows[SftRow]:
    """Return the rows of an SFT file that have the right form; what is wrong goes to ``faults``."""
    return _load(path, _SFT, faults)


def stream_slot_rows(path: Path, faults: FaultCollector, *, split: Split = "train") -> Iterator[Located[SlotRow]]:
    """Yield what `load_slot_rows` returns, row by row: a file of any length takes the memory of one row."""
    return _stream(path, _SLOTS if split == "train" else _EVALUATION, faults, lambda: None)


def stream_sft_rows(path: Path, faults: FaultCollector) -> Iterator[Located[SftRow]]:
    """Yield what `load_sft_rows` returns, row by row: a file of any length takes the memory of one row."""
    return _stream(path, _SFT, faults, lambda: None)


def _load(path: Path, form: _Form[RowT], faults: FaultCollector) -> FileRows[RowT]:
    is_whole = True

    def lose() -> None:
        nonlocal is_whole
        is_whole = False

    rows = list(_stream(path, form, faults, lose))
    return FileRows(rows=rows, is_whole=is_whole)


def _stream(path: Path, form: _Form[RowT], faults: FaultCollector, lose: Callable[[], None]) -> Iterator[Located[RowT]]:
    """Yield the rows of the right form; ``lose`` is called for each part of the file that is left out."""
    fits = compiled_schema(form.schema)

    def line_fault(fault: Fault) -> None:
        lose()
        faults.add(fault)

    try:
        for number, value in read_rows(path, gate=faults.gate, collect=line_fault):
            where, name = f"{path}:{number}", value.get(form.id_field)
            at = faults.context.at(where, name if isinstance(name, str) else None)
            if not fits(value):
                lose()
                faults.explain(partial(_explain, value, form, at))
                continue
            row = form.from_json(value)
            faults.extend(form.faults(row, at))
            yield Located(where=where, row=row)
    except Refusal as refusal:
        lose()
        faults.extend(refusal.faults)


def _explain(value: dict[str, Any], form: _Form[RowT], at: Context) -> Iterator[Fault]:
    suffix = f" ({at.subject})" if at.subject else ""
    for fault in validate(value, form.schema, gate=at.gate, file=str(at.file)):
        if fault.pointer == "/split" and isinstance(value.get("split"), str):
            yield _leakage(value["split"], form.split, at)
        else:
            yield replace(fault, found=f"{fault.found}{suffix}")


def _leakage(found: str, split: Split, at: Context) -> Fault:
    if split == "evaluation":
        return at.fault(
            pointer="/split",
            found=f"split {found_text(found)}",
            expected='"evaluation" in a file of held-out rows',
            fix="move the row to a training file, or correct its split",
        )
    return at.fault(
        pointer="/split",
        found=f"evaluation leakage: split {found_text(found)}",
        expected='"train" in every row that is trained on',
        fix="remove the row from the training file",
    )


def _rows_or_refusal(rows: list[Located[RowT]], faults: FaultCollector) -> tuple[RowT, ...]:
    faults.refuse_if_any()
    return tuple(located.row for located in rows)
