"""Schemas are documentation that a machine enforces: every field is described, shown by example, and true."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from explicit_learning.files.resources import SCHEMAS
from explicit_learning.freeze.draft import draft_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = sorted(SCHEMAS.glob("*.schema.json"))
EXAMPLES = sorted((SCHEMAS / "examples").iterdir())


def fields(schema: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every property of a schema, at any depth, with its place; conditions name fields described elsewhere."""
    if isinstance(schema, dict):
        for name, field in schema.get("properties", {}).items():
            yield f"{place}/{name}", field
        for key, value in schema.items():
            if key not in {"examples", "default", "const", "enum", "if", "then", "else", "not"}:
                yield from fields(value, f"{place}/{key}" if key != "properties" else place)
    elif isinstance(schema, list):
        for value in schema:
            yield from fields(value, place)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_schema_is_one_and_every_field_is_described(path: Path) -> None:
    schema = json.loads(path.read_text())
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    found = dict(fields(schema))
    assert found
    undescribed = [place for place, field in found.items() if "description" not in field and "$ref" not in field]
    assert undescribed == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_examples_and_defaults_of_fields_are_valid(path: Path) -> None:
    schema = json.loads(path.read_text())
    definitions = {"$defs": schema.get("$defs", {})}
    for place, field in fields(schema):
        values = [*field.get("examples", []), *([field["default"]] if "default" in field else [])]
        scalar = "properties" not in field
        for value in values if scalar else []:
            errors = [error.message for error in Draft202012Validator(field | definitions).iter_errors(value)]
            assert errors == [], (place, value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_golden_example_is_valid(path: Path) -> None:
    schema = json.loads((SCHEMAS / f"{path.stem}.schema.json").read_text())
    documents = [json.loads(path.read_text())] if path.suffix == ".json" else map(json.loads, path.open())
    for document in documents:
        assert [error.message for error in Draft202012Validator(schema).iter_errors(document)] == []


def test_every_schema_has_a_golden_example() -> None:
    assert {path.stem for path in EXAMPLES} == {path.name.removesuffix(".schema.json") for path in FILES}


def test_the_draft_schema_is_derived_from_the_plans() -> None:
    # `python tools/draft_schema.py` writes it.
    assert json.loads((SCHEMAS / "draft.schema.json").read_text()) == draft_schema()
