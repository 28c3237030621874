"""JSON Schemas applied so that a person can act on the result.

All errors are reported, each at its JSON pointer. A misspelt field is reported once, with the name that was probably
meant, although to a schema it is two errors (an unknown field, and perhaps a missing one).
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import FOUND_LIMIT, LIMIT, Context, found_text
from explicit_learning.files.resources import SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jsonschema import Draft202012Validator

    from explicit_learning.errors import Fault

__all__ = ["MISSING", "end_is_end", "load_schema", "pointer", "validate", "validator"]

MISSING = "nothing"  # found where a required field is not; a value is shown as JSON, and so never is this

ODD_SHOWN = 3  # characters
MEASURED = ("^[0-9a-f]{40}$", "^[0-9a-f]{64}$")  # commits and hashes


@cache
def load_schema(name: str) -> dict[str, Any]:
    """Return the schema ``schemas/NAME.schema.json``."""
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_bytes())
    return schema


@cache
def validator(name: str) -> Draft202012Validator:
    """Return a compiled validator for ``schemas/NAME.schema.json``.

    Two rules are stricter than jsonschema's: ``$`` in a pattern is the end of the text (Python's also matches before a
    final line break, so a hash or a name could end in one), and an integer is written as one (2, not 2.0).
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    integer = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    strict: type[Draft202012Validator] = extend(Draft202012Validator, {"pattern": _pattern}, type_checker=integer)
    return strict(load_schema(name))


def _pattern(_validator: object, pattern: str, instance: object, _schema: object) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not re.search(end_is_end(pattern), instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def end_is_end(pattern: str) -> str:
    """Return a schema's pattern as Python must write it: a final ``$`` is the end of the text, as in ECMA 262."""
    return f"{pattern[:-1]}\\Z" if pattern.endswith("$") and not pattern.endswith("\\$") else pattern


def pointer(parts: Any) -> str:
    """Return the JSON pointer (RFC 6901) of a path of names and indices."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


def validate(value: Any, name: str, *, gate: str, file: str) -> list[Fault]:
    """Return every way in which a value breaks a schema, in document order; beyond `LIMIT`, one fault for the rest.

    The last one points to the whole document, so that no part of it counts as sound.

    Args:
        value: The JSON value.
        name: The schema's name, as in ``schemas/NAME.schema.json``.
        gate: Name of the check, for the faults.
        file: The file the value was read from, for the faults.
    """
    at = Context(gate=gate, file=file)
    found = (fault for error in validator(name).iter_errors(value) for fault in _faults(error, at))
    faults = list(dict.fromkeys(islice(found, LIMIT)))
    rest = [
        at.fault(
            pointer="",
            found="more faults than these",
            expected="none",
            fix=f"fix the {len(faults)} shown: they often have one cause",
        )
        for _ in islice(found, 1)
    ]
    return [*sorted(faults, key=lambda fault: fault.pointer or ""), *rest]


def _faults(error: Any, at: Context) -> Iterator[Fault]:
    if error.validator in {"anyOf", "oneOf"}:
        branch = _nearest_branch(error)
        if branch:
            for child in branch:
                yield from _faults(child, at)
            return
    where = pointer(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        yield from _unknown_fields(error, where, at)
    elif error.validator == "required" and isinstance(error.instance, dict):
        missing = [name for name in error.validator_value if name not in error.instance]
        # jsonschema yields one error a missing name: report the one that its message starts with.
        name = next(name for name in missing if error.message.startswith(repr(name)))
        if not _is_misspelt(name, error):
            expected = _description(error.schema, name) or "a value"
            fix = f"add the field {name!r}"
            yield at.fault(pointer=f"{where}/{name}", found=MISSING, expected=expected, fix=fix)
    else:
        found = f"{found_text(error.instance)}{_odd_letters(error.instance)}"
        if error.validator == "maxLength":
            found += f", {len(error.instance)} code points (a letter with a combining mark has two)"
        yield at.fault(pointer=where, found=found, expected=_expected(error), fix=_fix(error))


def _odd_letters(text: object) -> str:
    """Return, in brackets, the first characters beyond ASCII by code point: a Cyrillic letter can look like a Latin."""
    odd = [character for character in dict.fromkeys(text) if not character.isascii()] if isinstance(text, str) else []
    named = (f"U+{ord(character):04X} {unicodedata.name(character, '')}".rstrip() for character in odd[:ODD_SHOWN])
    return f" (it holds {', '.join(named)})" if odd else ""


def _nearest_branch(error: Any) -> list[Any]:
    """Of a failed ``anyOf``, return the errors of the branch whose type fits the value, if there is just one."""
    branches: dict[int, list[Any]] = {}
    for child in error.context or ():
        branches.setdefault(int(child.schema_path[0]), []).append(child)
    fitting = [
        children
        for children in branches.values()
        if not any(child.validator in {"type", "const", "enum"} and not child.path for child in children)
    ]
    return fitting[0] if len(fitting) == 1 else []


def _unknown_fields(error: Any, where: str, at: Context) -> Iterator[Fault]:
    known = list(error.schema.get("properties", {}))
    for name in error.instance:
        if name not in known:
            near = difflib.get_close_matches(name, [key for key in known if key not in error.instance])
            yield at.fault(
                pointer=f"{where}{pointer([name])}",
                found=f"unknown field {name[:FOUND_LIMIT]!r}{_odd_letters(name)}",
                expected=f"one of: {', '.join(known)}",
                fix=f"write {near[0]!r}, if you meant that" if near else "remove the field",
            )


def _is_misspelt(name: str, error: Any) -> bool:
    known = error.schema.get("properties", {})
    if error.schema.get("additionalProperties", True) is not False:
        return False
    absent = [key for key in known if key not in error.instance]
    unknown = islice((found for found in error.instance if found not in known), LIMIT)
    return any(name in difflib.get_close_matches(found, absent, n=1) for found in unknown)


def _description(schema: Any, name: str) -> str:
    text = schema.get("properties", {}).get(name, {}).get("description", "") if isinstance(schema, dict) else ""
    return str(text)


_TYPES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a JSON object",
    "null": "null",
}


def _expected(error: Any) -> str:
    rule, value = error.validator, error.validator_value
    phrases: dict[str, Callable[[], str]] = {
        "type": lambda: " or ".join(_TYPES[name] for name in (value if isinstance(value, list) else [value])),
        "enum": lambda: f"one of {', '.join(map(found_text, value))}",
        "const": lambda: found_text(value),
        "minimum": lambda: f"at least {value}",
        "maximum": lambda: f"at most {value}",
        "exclusiveMinimum": lambda: f"more than {value}",
        "exclusiveMaximum": lambda: f"less than {value}",
        "multipleOf": lambda: f"a multiple of {value}",
        "minLength": lambda: f"at least {_counted(value, 'character')}",
        "maxLength": lambda: f"at most {_counted(value, 'code point')}",
        "minItems": lambda: f"at least {_counted(value, 'item')}",
        "maxItems": lambda: f"at most {_counted(value, 'item')}",
        "minProperties": lambda: f"at least {_counted(value, 'field')}",
        "maxProperties": lambda: f"at most {_counted(value, 'field')}",
        "pattern": lambda: f"text that matches {value}",
        "uniqueItems": lambda: "items that differ",
        "anyOf": lambda: "one of the forms that the schema allows",
        "oneOf": lambda: "one of the forms that the schema allows",
    }
    phrase = phrases[rule]() if rule in phrases else found_text(error.message)
    description = error.schema.get("description") if isinstance(error.schema, dict) else None
    return f"{phrase} ({description})" if description else phrase


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _fix(error: Any) -> str:
    if error.validator == "enum" and isinstance(error.instance, str):
        near = difflib.get_close_matches(error.instance, [str(value) for value in error.validator_value])
        if near:
            return f"write {near[0]!r}, if you meant that"
    schema = error.schema if isinstance(error.schema, dict) else {}
    if schema.get("x-computed"):
        return "freeze the draft again: this value is measured, not chosen"
    if schema.get("pattern") in MEASURED:
        return "make the document again with the program that wrote it: this value is measured, not chosen"
    examples = schema.get("examples")
    return f"write a value such as {found_text(examples[0])}" if examples else "correct the value"
