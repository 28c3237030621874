"""What a build left out of a dataset, and why: `refused.jsonl` beside the manifest, one line a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import found_text
from explicit_learning.files.jsonl import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import FaultCollector

__all__ = ["Refused", "RefusedExample", "RefusedKind", "read_refused"]

EXAMPLES = 3
KINDS = 50
EXPECTED = 'an object with "where", "id" and "faults", each of these with "field", "found" and "expected"'
FIX = "restore the file, or build the dataset again"
FAULT_FIELDS = ("field", "found", "expected")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedExample:
    """A refused row: its place in the source, its own name if it has one, and what was found."""

    where: str
    id: str | None
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedKind:
    """A reason: the field, what was expected, how many rows it was not met in, and the first of them."""

    field: str
    expected: str
    rows: int
    examples: tuple[RefusedExample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """All rows that were left out.

    Attributes:
        rows: How many.
        kinds: The reasons, the most frequent first, at most fifty; a row can have several.
        more_kinds: How many further reasons there are.
    """

    rows: int
    kinds: tuple[RefusedKind, ...]
    more_kinds: int


@dataclass(slots=True)
class _Kind:
    rows: int = 0
    examples: list[RefusedExample] = field(default_factory=list)


def read_refused(path: Path, faults: FaultCollector) -> Refused | None:
    """Count what a file of refused rows holds; ``None`` where there is no such file.

    Args:
        path: The file.
        faults: Takes lines that are not of this form; they are left out.

    Raises:
        Refusal: If the file cannot be read.
    """
    if not path.exists():
        return None
    rows, kinds = 0, dict[tuple[str, str], _Kind]()
    for number, row in read_rows(path, gate=faults.gate, collect=faults.add):
        if not _is_refused_row(row):
            at = faults.context.at(f"{path}:{number}")
            faults.add(at.fault(pointer="", found=found_text(row), expected=EXPECTED, fix=FIX))
            continue
        rows += 1
        seen = set()
        for fault in row["faults"]:
            key = (fault["field"], fault["expected"])
            if key in seen:  # two boxes of one row can be wrong alike
                continue
            seen.add(key)
            kind = kinds.setdefault(key, _Kind())
            kind.rows += 1
            if len(kind.examples) < EXAMPLES:
                kind.examples.append(RefusedExample(where=row["where"], id=row["id"], found=fault["found"]))
    ordered = sorted(kinds.items(), key=lambda pair: (-pair[1].rows, pair[0]))
    return Refused(
        rows=rows,
        kinds=tuple(
            RefusedKind(field=name, expected=expected, rows=kind.rows, examples=tuple(kind.examples))
            for (name, expected), kind in ordered[:KINDS]
        ),
        more_kinds=max(0, len(ordered) - KINDS),
    )


def _is_refused_row(row: dict[str, Any]) -> bool:
    found = row.get("faults")
    return (
        isinstance(row.get("where"), str)
        and isinstance(row.get("id", 0), str | None)
        and isinstance(found, list)
        and all(isinstance(fault, dict) and _has_texts(fault) for fault in found)
    )


def _has_texts(fault: dict[str, Any]) -> bool:
    return all(isinstance(fault.get(name), str) for name in FAULT_FIELDS)
