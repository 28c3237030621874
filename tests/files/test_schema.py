"""A fault stays short whatever a field holds, and a path with a character that no file system allows is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import PLANS, SCHEMAS
from explicit_learning.files.schema import load_schema, validate
from explicit_learning.plan.reading import plan_of_bytes
from tests.support.plans import PLAN

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN: dict[str, Any] = {
    "plan": json.loads((SCHEMAS / "examples" / "plan.json").read_text()),
    "draft": json.loads((PLANS / "demo" / "evi_po.json").read_text()),
    "experiment": json.loads((PLANS / "demo" / "experiment.json").read_text()),
}
LIMIT = 1000  # characters of each text of a fault
ODD: list[Any] = [None, True, -1, 1e308, 2**53 - 1, "", "x" * 5_000, "\n", "\0", [], [[]] * 500, {}]
ODD += [{"y" * 2_000: 1}, {f"name-{index}": 1 for index in range(20)}]


def places(schema: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the path of every field of a schema, and its own schema."""
    for name, field in schema.get("properties", {}).items():
        yield (*at, name), field
        yield from places(field, (*at, name))


def put(document: Any, at: tuple[str, ...], value: Any) -> Any:
    """Return a document with one field replaced; what it leads through is made where it is missing."""
    changed = copy.deepcopy(document)
    holder = changed
    for name in at[:-1]:
        if not isinstance(holder.get(name), dict):
            holder[name] = {}
        holder = holder[name]
    holder[at[-1]] = value
    return changed


@pytest.mark.parametrize("name", GOLDEN)
def test_no_value_makes_a_fault_long(name: str) -> None:
    long = [
        (at, key)
        for at, _ in places(load_schema(name))
        for value in ODD
        for fault in validate(put(GOLDEN[name], at, value), name, gate="test", file="f")
        for key, text in fault.to_json().items()
        if key != "pointer" and len(text or "") > LIMIT
    ]
    assert long == []


@pytest.mark.parametrize("name", GOLDEN)
def test_a_path_holds_no_null_character(name: str) -> None:
    paths = [at for at, field in places(load_schema(name)) if field.get("maxLength") == 4096]
    assert paths
    for at in paths:
        faults = validate(put(GOLDEN[name], at, "a\0b"), name, gate="test", file="f")
        assert "/" + "/".join(at) in {fault.pointer for fault in faults}, at


@pytest.mark.parametrize(
    ("pointer", "value", "expected"),
    [
        ("/seed", "3", "an integer"),
        ("/run_id", 3, "a string"),
        ("/optimisation", [], "a JSON object"),
        ("/initial_adapter", 3, "a JSON object or null"),
        ("/code_dirty", "no", "true or false"),
        ("/optimisation/learning_rate", None, "a number"),
        ("/seed", -1, "at least 0"),
    ],
)
def test_a_value_of_another_type_is_described_in_words(pointer: str, value: Any, expected: str) -> None:
    broken = put(GOLDEN["plan"], tuple(pointer.split("/")[1:]), value)
    faults = {fault.pointer: fault for fault in validate(broken, "plan", gate="test", file="f")}
    assert faults[pointer].expected.startswith(f"{expected} (")


def test_beyond_a_hundred_faults_the_rest_is_one_and_no_rule_looks_at_the_document() -> None:
    # Explaining took up to 0.7 ms a field, and a million unknown fields fit into a plan of 16 MB.
    plan = PLAN | {f"unknown-{index}": 1 for index in range(20_000)}
    document = plan_of_bytes(json.dumps(plan).encode(), Path("plan.json"))
    *shown, rest = document.faults
    assert len(shown) == 100
    assert all(fault.found.startswith("unknown field 'unknown-") for fault in shown)
    assert (rest.pointer, rest.found) == ("", "more faults than these")
    assert not document.is_sound("arm")


def test_a_hundred_faults_are_all_of_them() -> None:
    plan = PLAN | {f"unknown-{index}": 1 for index in range(100)}
    assert {fault.pointer for fault in validate(plan, "plan", gate="g", file="f")} == {
        f"/unknown-{index}" for index in range(100)
    }
