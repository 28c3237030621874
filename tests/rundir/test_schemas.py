"""The forms of what a run writes about itself: every field is described by example, and none is optional."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.schema import load_schema, validate

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = (
    "accounting-header",
    "checkpoint-mark",
    "completion-marker",
    "event",
    "frontier",
    "ledger-entry",
    "resume-audit",
    "run-manifest",
    "smoke-resume-boundary",
    "state-digests",
    "trace-row",
    "training-facts",
)


def example(name: str) -> Any:
    return json.loads((SCHEMAS / "examples" / f"{name}.json").read_text())


def properties(schema: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(schema, dict):
        return
    for name, child in schema.get("properties", {}).items():
        yield f"{where}/{name}", child
        yield from properties(child, f"{where}/{name}")
    for keyword in ("items", "additionalProperties"):
        yield from properties(schema.get(keyword), f"{where}/{keyword}")


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_described_with_examples_that_fit(name: str) -> None:
    found = list(properties(load_schema(name)))
    assert found
    for where, schema in found:
        assert schema.get("description"), where
        assert schema.get("examples"), where
        for value in schema["examples"]:
            Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_and_missing_fields_are_refused(name: str) -> None:
    value = example(name)
    first = next(iter(value))
    broken = {key: item for key, item in value.items() if key != first} | {"zzzzzzzz": 1}
    assert {fault.pointer for fault in validate(broken, name, gate="test", file=name)} == {f"/{first}", "/zzzzzzzz"}
