"""A document is the same value as a class and as a file, and its schema is applied in both directions."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest

from explicit_learning.accounting.binding import AccountingHeader
from explicit_learning.accounting.rows import LedgerEntry, TraceRow
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.typed_json import DEFECT, from_json, parsed, read_document, to_json, write_document

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = {"ledger-entry": LedgerEntry, "trace-row": TraceRow, "accounting-header": AccountingHeader}


def example(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SCHEMAS / "examples" / f"{name}.json").read_text())
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    size: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    name: Literal["a", "b"] | None
    part: Part | None
    parts: tuple[Part, ...]
    by_name: dict[str, Part]
    numbers: tuple[int, ...] | None
    either: int | float
    anything: Any


def test_each_kind_of_field_is_built_and_written_back() -> None:
    value = {
        "name": "b",
        "part": {"size": 1},
        "parts": [{"size": 2.5}],
        "by_name": {"x": {"size": 3}},
        "numbers": [1, 2],
        "either": 4,
        "anything": {"list": [1, [2]]},
    }
    whole = from_json(Whole, {"$schema": "left out"} | value)
    assert whole == Whole(
        name="b",
        part=Part(size=1.0),
        parts=(Part(size=2.5),),
        by_name={"x": Part(size=3.0)},
        numbers=(1, 2),
        either=4,
        anything={"list": [1, [2]]},
    )
    assert type(whole.by_name["x"].size) is float
    assert type(whole.either) is int
    assert to_json(whole) == value
    empty = from_json(Whole, value | {"name": None, "part": None, "numbers": None})
    assert (empty.name, empty.part, empty.numbers) == (None, None, None)


def test_a_field_that_the_class_does_not_have_is_an_error_of_the_program() -> None:
    with pytest.raises(TypeError, match="colour"):
        from_json(Part, {"size": 1, "colour": "red"})


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_golden_example_comes_back_from_a_file(tmp_path: Path, name: str) -> None:
    path, kind = tmp_path / "document.json", DOCUMENTS[name]
    write_document(path, parsed(example(name), kind, gate="test", file="f"), gate="test")
    assert json.loads(path.read_text()) == example(name)
    assert to_json(read_document(path, kind, gate="test")) == example(name)


def test_a_document_that_breaks_its_schema_is_not_written(tmp_path: Path) -> None:
    entry = dataclasses.replace(from_json(LedgerEntry, example("ledger-entry")), token_count=0)
    with pytest.raises(Refusal) as refusal:
        write_document(tmp_path / "entry.json", entry, gate="test")
    (fault,) = refusal.value.faults
    assert (fault.pointer, fault.found, fault.fix, fault.exit_code) == (
        "/token_count",
        "0",
        DEFECT,
        ExitCode.INTERNAL,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"run_id": "x"}', "4 missing fields: /generation, /slot_id, /token_count, /visit"),
        ("{", "line 1, column 2: Expecting property name enclosed in double quotes"),
        ("3", "3"),
        (None, "no such file"),
    ],
)
def test_a_programs_broken_document_is_refused_with_the_callers_fix(
    tmp_path: Path, text: str | None, found: str
) -> None:
    path = tmp_path / "entry.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Refusal) as refusal:
        read_document(path, LedgerEntry, gate="test", fix="restore it")
    (fault,) = refusal.value.faults
    assert (fault.found, fault.fix) == (found, "restore it")
    assert refusal.value.exit_code == ExitCode.CONTRACT
