"""Every field of a plan as Markdown, from `schemas/plan.schema.json` and `schemas/draft.schema.json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["field_pointers", "plan_fields"]

Schema = dict[str, Any]
HEAD = "| field | value | meaning |\n| --- | --- | --- |"
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "pattern": "matches {}",
}


def plan_fields(schemas: Path) -> str:
    """Return a section for each block of a plan, with a table row for each of its fields.

    Args:
        schemas: Folder of the schemas.

    Raises:
        OSError: If a schema cannot be read.
        ValueError: If a field has no description: the page would hide it.
    """
    plan = json.loads((schemas / "plan.schema.json").read_text("utf-8"))
    draft = json.loads((schemas / "draft.schema.json").read_text("utf-8"))
    drafted = dict(_fields(draft, ""))
    required = _required(draft, "")
    blocks: dict[str, list[str]] = {}
    for pointer, field in _fields(plan, ""):
        block = pointer.split("/")[1]
        blocks.setdefault(block, []).append(_row(pointer, field, drafted.get(pointer), required=pointer in required))
    only = [pointer for pointer in drafted if pointer not in dict(_fields(plan, ""))]
    alone = [rows[0] for rows in blocks.values() if len(rows) == 1]
    sections = ["### Fields of the whole plan\n\n" + "\n".join([HEAD, *alone])]
    sections += [f"### `{name}`\n\n" + "\n".join([HEAD, *rows]) for name, rows in blocks.items() if len(rows) > 1]
    if only:
        rows = [_row(pointer, drafted[pointer], drafted[pointer], required=pointer in required) for pointer in only]
        sections.append("### Fields that only a draft has\n\n" + "\n".join([HEAD, *rows]))
    return "\n\n".join(sections) + "\n"


def field_pointers(schema: Schema) -> list[str]:
    """Return the JSON pointers of all fields that a schema describes, blocks included."""
    return [pointer for pointer, _ in _fields(schema, "")]


def _fields(schema: Schema, above: str) -> Iterator[tuple[str, Schema]]:
    """Yield pointer and schema of each field, outer before inner; entries of a list are ``/*``."""
    for name, field in schema.get("properties", {}).items():
        pointer = f"{above}/{name}"
        yield pointer, field
        yield from _fields(field, pointer)
        if "properties" in field.get("items", {}):
            yield from _fields(field["items"], f"{pointer}/*")
    for key in ("oneOf", "anyOf"):
        for each in schema.get(key, []):
            yield from _fields(each, above)


def _required(schema: Schema, above: str) -> set[str]:
    found = {f"{above}/{name}" for name in schema.get("required", [])}
    for name, field in schema.get("properties", {}).items():
        found |= _required(field, f"{above}/{name}")
    return found


def _row(pointer: str, field: Schema, drafted: Schema | None, *, required: bool) -> str:
    """Return a field's row: its name in its block, what it may hold and where that comes from, and what it means."""
    if "description" not in field:
        raise ValueError(f"{pointer}: found no description in the schema; expected one")
    words = [_value(field)]
    if drafted is None:
        words.append("Written by `el freeze`")
    elif "x-derived" in field:
        words.append(f"Default: {field['x-derived']}")
    elif "default" in field:
        words.append(f"Default: {_code(field['default'])}")
    elif required:
        words.append("Required in a draft")
    example = f" Example: {_code(field['examples'][0])}." if "examples" in field and "properties" not in field else ""
    name = ".".join(pointer.split("/")[2:]) or pointer[1:]
    return f"| `{name}` | {_cell('. '.join(words))} | {_cell(field['description'] + example)} |"


def _value(field: Schema) -> str:
    """Return what a field may hold: its values or its type, with the limits."""
    if "const" in field:
        return _cell(_code(field["const"]))
    if "enum" in field:
        return _cell(", ".join(_code(value) for value in field["enum"]))
    kinds = field.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    words = [" or ".join("block" if kind == "object" and "properties" in field else kind for kind in kinds)]
    if "items" in field:
        words[0] += f" of {_value(field['items'])}"
    words += [
        text.format(_code(field[key]) if key == "pattern" else field[key])
        for key, text in LIMITS.items()
        if key in field
    ]
    return _cell(", ".join(words))


def _code(value: object) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _cell(text: str) -> str:
    """Return text that stands in one cell: a bar outside it would end the cell."""
    return text.replace("\\|", "|").replace("|", "\\|").replace("\n", " ")
