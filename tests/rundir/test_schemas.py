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
    "counters",
    "evaluation",
    "evaluation-answer",
    "export",
    "event",
    "follower-manifest",
    "launch-end",
    "launch-manifest",
    "launch-start",
    "ledger-entry",
    "rank-frontiers",
    "rank-outcome",
    "resume-audit",
    "run-manifest",
    "smoke-output-comparison",
    "smoke-resume-boundary",
    "state-digests",
    "trace-row",
)


def example(name: str) -> Any:
    return json.loads((SCHEMAS / "examples" / f"{name}.json").read_text())


def properties(schema: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(schema, dict):
        return
    for name, child in schema.get("properties", {}).items():
        yield f"{where}/{name}", child
        yield from properties(child, f"{where}/{name}")
    for name, child in schema.get("$defs", {}).items():
        yield from properties(child, f"{where}/$defs/{name}")
    for keyword in ("items", "additionalProperties"):
        yield from properties(schema.get(keyword), f"{where}/{keyword}")


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_described_with_examples_that_fit(name: str) -> None:
    whole = load_schema(name)
    found = list(properties(whole))
    assert found
    for where, schema in found:
        assert schema.get("description"), where
        assert schema.get("examples"), where
        for value in schema["examples"]:
            Draft202012Validator(schema | {"$defs": whole.get("$defs", {})}).validate(value)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_and_missing_fields_are_refused(name: str) -> None:
    value = example(name)
    first = next(iter(value))
    broken = {key: item for key, item in value.items() if key != first} | {"zzzzzzzz": 1}
    assert {fault.pointer for fault in validate(broken, name, gate="test", file=name)} == {f"/{first}", "/zzzzzzzz"}


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and everything in it that is one, at any depth."""
    if isinstance(schema, dict):
        yield schema
        for child in schema.values():
            yield from parts(child)


def rules(schema: Any) -> Any:
    """Return a schema without what only people read."""
    if isinstance(schema, dict):
        return {name: rules(child) for name, child in schema.items() if name not in {"description", "examples"}}
    return schema


@pytest.mark.parametrize(
    ("whole", "place", "copies"),
    [
        ("rank-frontiers", ("properties", "ledger"), ("checkpoint-mark", "completion-marker", "smoke-resume-boundary")),
        ("state-digests", ("properties", "components"), ("smoke-resume-boundary",)),
        (
            "launch-start",
            ("$defs", "machine"),
            ("completion-marker", "evaluation", "export", "follower-manifest", "launch-manifest"),
        ),
        ("launch-start", ("$defs", "change"), ("completion-marker", "smoke-output-comparison")),
    ],
)
def test_a_part_of_several_documents_has_the_same_rules_in_all(
    whole: str, place: tuple[str, ...], copies: tuple[str, ...]
) -> None:
    original = load_schema(whole)
    for name in place:
        original = original[name]
    fields = rules(original["properties"])
    for name in copies:
        same = [part for part in parts(load_schema(name)) if part.get("properties", {}).keys() == fields.keys()]
        assert same, name
        assert all(rules(part["properties"]) == fields for part in same), name
