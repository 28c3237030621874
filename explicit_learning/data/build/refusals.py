"""Rows that cannot be used: one line each in ``refused.jsonl``, or, under ``--strict``, faults that end the build."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from explicit_learning.data.build.source import RefusedRow, RowFault
from explicit_learning.errors import Context, FaultCollector
from explicit_learning.errors.collector import LIMIT
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.data.build.state import State
    from explicit_learning.errors import Fault

__all__ = ["GATE", "note_refused", "refuse_rows", "refused_faults", "refused_lines", "too_many_for_strict"]

GATE = "source"
FIX = "correct the row, or leave it out of the source; without --strict the build goes on with the other rows"


def note_refused(state: State, row: RefusedRow) -> None:
    """Note a row that cannot be used."""
    line = {"where": row.where, "id": row.item_id, "faults": to_json(row.faults)}
    state.run("INSERT INTO refused VALUES (?, ?)", row.number, json.dumps(line))


def refused_lines(state: State) -> Iterator[bytes]:
    """Yield the lines of ``refused.jsonl``, in the source's order."""
    for (line,) in state.rows("SELECT line FROM refused ORDER BY number"):
        yield canonical_bytes(json.loads(line)) + b"\n"


def too_many_for_strict(state: State) -> bool:
    """Return whether so many rows are refused that no more faults would be shown."""
    return state.count("SELECT COUNT(*) FROM refused") >= LIMIT


def refused_faults(state: State) -> Iterator[Fault]:
    """Yield what is wrong with each refused row, in the source's order."""
    for (line,) in state.rows("SELECT line FROM refused ORDER BY number"):
        row: dict[str, Any] = json.loads(line)
        at = Context(gate=GATE, fix=FIX).at(row["where"], row["id"])
        for fault in (RowFault(**value) for value in row["faults"]):
            yield at.fault(pointer=fault.field, found=fault.found, expected=fault.expected)


def refuse_rows(state: State) -> None:
    """End the build if any row is refused: a strict one, or one that has no other rows.

    Raises:
        Refusal: With the faults of the first of these rows, and the number of the others.
    """
    faults = FaultCollector(GATE)
    faults.extend(refused_faults(state))
    faults.refuse_if_any()
