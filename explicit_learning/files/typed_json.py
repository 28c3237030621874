"""Typed documents: the one way from a JSON object to a frozen dataclass and back.

A document's class mirrors its schema by name. Its schema is applied whenever it is read and whenever it is written, so
that no file can hold, and no code can be given, what the contract does not allow.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum, IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from explicit_learning.errors import FOUND_LIMIT, ExitCode, Refusal, beginning_of
from explicit_learning.files.atomic import write_json
from explicit_learning.files.compiled_schema import compiled_schema
from explicit_learning.files.schema import MISSING, validate
from explicit_learning.files.strict_json import MAX_BYTES, load_json

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault

__all__ = [
    "DEFECT",
    "MAYBE_OTHER_VERSION",
    "OTHER_VERSION",
    "RESTORE",
    "checked_json",
    "document",
    "field_names",
    "from_json",
    "parsed",
    "read_document",
    "to_json",
]
__all__ += ["write_document"]

T = TypeVar("T")
Convert = Callable[[Any], Any]

DEFECT = "report this as a defect (CONTRIBUTING.md says where): the program wrote or was about to write this document"
MAYBE_OTHER_VERSION = "if another version of this program began the run, continue it with that version"
# For a document whose bytes are proven to be those that were written.
OTHER_VERSION = (
    "another version of this program wrote it: continue the run with that version, or start it again in another folder "
    "(--out)"
)
RESTORE = f"restore the file from a copy, or start the run again in another folder (--out); {MAYBE_OTHER_VERSION}"
_SCHEMAS: dict[type[Any], str] = {}
_BUILDERS: dict[type[Any], Convert] = {}
_SCALARS = frozenset({str, int, float, bool, type(None)})


def document(schema: str) -> Callable[[type[T]], type[T]]:
    """Name the schema, ``schemas/SCHEMA.schema.json``, of a dataclass that is a whole file or line.

    Write it above ``@dataclass``. Reading a document evaluates the annotations of its class, so the types in them are
    imported outside ``TYPE_CHECKING``; pyproject.toml exempts these classes from ruff's rule.
    """

    def register(kind: type[T]) -> type[T]:
        _SCHEMAS[kind] = schema
        return kind

    return register


def read_document(path: Path, kind: type[T], *, gate: str, fix: str | None = None, max_bytes: int = MAX_BYTES) -> T:
    """Read a file, check it by the schema of its class, and return it typed (see `parsed`).

    Raises:
        Refusal: If it is missing, unreadable, not strict JSON, or breaks its schema; with every fault.
    """
    value = load_json(path, gate=gate, fix=fix, max_bytes=max_bytes)
    return parsed(value, kind, gate=gate, file=str(path), fix=fix)


def parsed(value: Any, kind: type[T], *, gate: str, file: str, fix: str | None = None) -> T:  # noqa: ANN401 - any JSON value
    """Check a JSON value by the schema of a document's class, and return it typed.

    Args:
        value: The value.
        kind: The class.
        gate: Name of the check, for the faults.
        file: The file the value was read from, for the faults.
        fix: What to do about a document that a program wrote; by default each fault's own advice.

    Raises:
        Refusal: If it breaks its schema; with every fault.
    """
    name = _SCHEMAS[kind]
    if not compiled_schema(name)(value):
        faults = validate(value, name, gate=gate, file=file)
        raise Refusal(_damage(faults, fix) if fix else faults)
    return from_json(kind, value)


def _damage(faults: list[Fault], fix: str) -> list[Fault]:
    """Return the faults of a document that a program wrote: one for all fields that are missing."""
    missing = [fault for fault in faults if fault.found == MISSING]
    if len(missing) > 1:
        names = ", ".join(fault.pointer or "" for fault in missing)
        found = beginning_of(names, FOUND_LIMIT)
        whole = replace(
            missing[0],
            pointer="",
            found=f"{len(missing)} missing fields: {found}",
            expected="a document with all of its fields",
        )
        faults = [whole, *(fault for fault in faults if fault.found != MISSING)]
    return [replace(fault, fix=fix) for fault in faults]


def write_document(path: Path, value: object, *, gate: str) -> None:
    """Write a document, whole or not at all, once it has passed the schema of its class.

    Raises:
        Refusal: If it breaks its schema (exit code 70): readers would refuse it.
        OSError: If it cannot be written.
    """
    write_json(path, checked_json(value, gate=gate, file=str(path)))


def checked_json(value: object, *, gate: str, file: str) -> dict[str, Any]:
    """Return a document as a JSON object that has passed the schema of its class.

    Raises:
        Refusal: If it breaks its schema (exit code 70).
    """
    name, plain = _SCHEMAS[type(value)], to_json(value)
    if not compiled_schema(name)(plain):
        faults = validate(plain, name, gate=gate, file=file)
        raise Refusal(replace(fault, fix=DEFECT, exit_code=ExitCode.INTERNAL) for fault in faults)
    result: dict[str, Any] = plain
    return result


def to_json(value: Any) -> Any:  # noqa: ANN401 - dataclasses and JSON values of any shape
    """Return a dataclass as a JSON object, its fields in order.

    Nested dataclasses become objects, tuples become arrays, and members of an enumeration become their values.
    """
    if type(value) in _SCALARS:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def from_json(kind: type[T], value: dict[str, Any]) -> T:
    """Build a dataclass from a JSON object that has passed its schema.

    Nested objects become nested dataclasses, arrays become tuples, what is annotated `Any` stays as it is; a name
    beginning with ``$`` is an annotation for editors and is left out.

    Raises:
        TypeError: If a field is missing or unknown: the schema and the class disagree.
    """
    if kind not in _BUILDERS:
        _BUILDERS[kind] = _builder(kind)
    built: T = _BUILDERS[kind](value)
    return built


def _builder(kind: type[Any]) -> Convert:
    """Return `from_json` for one class; its annotations are looked up once, because rows come by the million."""
    converters = {name: convert for name, hint in typing.get_type_hints(kind).items() if (convert := _converter(hint))}

    def build(value: dict[str, Any]) -> Any:  # noqa: ANN401 - of any class
        return kind(
            **{
                name: converters[name](item) if name in converters else item
                for name, item in value.items()
                if name[:1] != "$"
            }
        )

    return build


def _converter(hint: Any) -> Convert | None:  # noqa: ANN401 - annotations of any form
    """Return what makes a field of this type from a JSON value; ``None`` if the value is the field."""
    options = typing.get_args(hint) if typing.get_origin(hint) in {types.UnionType, typing.Union} else (hint,)
    if Any in options:
        return None
    converters: dict[type[Any], Convert] = {}
    for option in options:
        if is_dataclass(option):
            converters[dict] = _builder(typing.cast("type[Any]", option))
        elif typing.get_origin(option) is dict:
            converters[dict] = partial(_object_of, _converter(typing.get_args(option)[1]))
        elif typing.get_origin(option) is tuple:
            item = _converter(typing.get_args(option)[0])
            converters[list] = tuple if item is None else partial(_tuple_of, item)
        elif option is float and int not in options:
            converters[int] = float
        elif isinstance(option, type) and issubclass(option, IntEnum):
            converters[int] = option
    if not converters:
        return None
    return lambda value: converters.get(type(value), _unchanged)(value)


def _object_of(item: Convert | None, value: dict[str, Any]) -> dict[str, Any]:
    return value if item is None else {name: item(part) for name, part in value.items()}


def _tuple_of(item: Convert, value: list[Any]) -> tuple[Any, ...]:
    return tuple(map(item, value))


def _unchanged(value: T) -> T:
    return value


def field_names(kind: type[Any]) -> list[str]:
    """Return the names of a dataclass's fields, in order."""
    return [field.name for field in fields(kind)]
