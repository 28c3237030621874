"""A schema compiled to one fast yes-or-no function.

jsonschema explains errors well and takes about a millisecond a row; tens of thousands of rows, nearly all of them
right, need only a yes. So each row is tested by a function compiled from the same schema, and only a row that fails is
given to `explicit_learning.files.schema.validate` for its explanation. The compiler supports exactly the
keywords that these schemas use and refuses any other at compile time, so that it never skips a rule; a test compares
its answers with jsonschema's on mutated rows.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from explicit_learning.files.schema import end_is_end, load_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[Any], bool]
    Builder = Callable[[Any, "_Definitions"], Check]

__all__ = ["compiled_schema"]

_ANNOTATIONS = frozenset({"$schema", "$id", "$defs", "title", "description", "examples"})
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_NUMBERS = frozenset({int, float})


@cache
def compiled_schema(name: str) -> Check:
    """Return a function that returns whether a JSON value fits ``schemas/NAME.schema.json``.

    Raises:
        NotImplementedError: If the schema uses a keyword that is not known here.
    """
    schema = load_schema(name)
    return _compile(schema, _Definitions(schema.get("$defs", {})))


class _Definitions:
    """The schema's ``$defs``, each compiled once."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self._schemas = schemas
        self._checks: dict[str, Check] = {}

    def __getitem__(self, reference: str) -> Check:
        name = reference.removeprefix("#/$defs/")
        if name not in self._checks:
            self._checks[name] = _compile(self._schemas[name], self)
        return self._checks[name]


def _compile(schema: Any, definitions: _Definitions) -> Check:
    if isinstance(schema, bool):
        return lambda _: schema
    keywords = schema.keys() - _ANNOTATIONS
    checks = []
    for names, build in _BUILDERS:
        if not keywords.isdisjoint(names):
            checks.append(build(schema, definitions))
            keywords -= set(names)
    if keywords:
        raise NotImplementedError(f"schema keywords {sorted(keywords)}")
    return _all(checks)


def _all(checks: list[Check]) -> Check:
    """Join checks; the lengths that occur are written out, because a generator costs more than the checks."""
    if not checks:
        return lambda _: True
    if len(checks) == 1:
        return checks[0]
    if len(checks) == 2:  # noqa: PLR2004 - two
        first, second = checks
        return lambda instance: first(instance) and second(instance)
    first, second, *others = checks
    rest = _all(others)
    return lambda instance: first(instance) and second(instance) and rest(instance)


def _type(schema: Any, _definitions: _Definitions) -> Check:
    value = schema["type"]
    types = frozenset(kind for name in (value if isinstance(value, list) else [value]) for kind in _TYPES[name])
    if len(types) == 1:
        (only,) = types
        return lambda instance: type(instance) is only
    return lambda instance: type(instance) in types


def _const(schema: Any, _definitions: _Definitions) -> Check:
    value = schema["const"]
    kind = type(value)
    return lambda instance: type(instance) is kind and instance == value


def _enum(schema: Any, _definitions: _Definitions) -> Check:
    allowed = frozenset(schema["enum"])
    return lambda instance: (instance is None or type(instance) is str) and instance in allowed


def _pattern(schema: Any, _definitions: _Definitions) -> Check:
    search = re.compile(end_is_end(schema["pattern"])).search
    return lambda instance: type(instance) is not str or search(instance) is not None


def _bounds(low: str, high: str, kind: type, measure: Callable[[Any], int]) -> Builder:
    def build(schema: Any, _definitions: _Definitions) -> Check:
        least, most = schema.get(low, 0), schema.get(high, float("inf"))
        return lambda instance: type(instance) is not kind or least <= measure(instance) <= most

    return build


def _range(schema: Any, _definitions: _Definitions) -> Check:
    least, most = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
    return lambda instance: type(instance) not in _NUMBERS or least <= instance <= most


def _items(schema: Any, definitions: _Definitions) -> Check:
    item = _compile(schema["items"], definitions)

    def check(instance: Any) -> bool:
        if type(instance) is list:
            for child in instance:
                if not item(child):
                    return False
        return True

    return check


def _properties(schema: Any, definitions: _Definitions) -> Check:
    known = {name: _compile(child, definitions) for name, child in schema.get("properties", {}).items()}
    other = _compile(schema.get("additionalProperties", True), definitions)

    def check(instance: Any) -> bool:
        if type(instance) is dict:
            for name, child in instance.items():
                if not known.get(name, other)(child):
                    return False
        return True

    return check


def _property_names(schema: Any, definitions: _Definitions) -> Check:
    name = _compile(schema["propertyNames"], definitions)
    return lambda instance: type(instance) is not dict or all(map(name, instance))


def _required(schema: Any, _definitions: _Definitions) -> Check:
    names = frozenset(schema["required"])
    return lambda instance: type(instance) is not dict or names <= instance.keys()


def _reference(schema: Any, definitions: _Definitions) -> Check:
    return definitions[schema["$ref"]]


def _all_of(schema: Any, definitions: _Definitions) -> Check:
    return _all([_compile(child, definitions) for child in schema["allOf"]])


def _one_of(schema: Any, definitions: _Definitions) -> Check:
    checks = [_compile(child, definitions) for child in schema["oneOf"]]
    return lambda instance: sum(check(instance) for check in checks) == 1


def _if(schema: Any, definitions: _Definitions) -> Check:
    condition, then, otherwise = (_compile(schema.get(name, True), definitions) for name in ("if", "then", "else"))
    return lambda instance: then(instance) if condition(instance) else otherwise(instance)


# Keywords that are read together, in the order in which they are tested.
_BUILDERS: tuple[tuple[tuple[str, ...], Builder], ...] = (
    (("type",), _type),
    (("const",), _const),
    (("enum",), _enum),
    (("minLength", "maxLength"), _bounds("minLength", "maxLength", str, len)),
    (("minItems", "maxItems"), _bounds("minItems", "maxItems", list, len)),
    (("minProperties", "maxProperties"), _bounds("minProperties", "maxProperties", dict, len)),
    (("minimum", "maximum"), _range),
    (("pattern",), _pattern),
    (("required",), _required),
    (("propertyNames",), _property_names),
    (("properties", "additionalProperties"), _properties),
    (("items",), _items),
    (("$ref",), _reference),
    (("allOf",), _all_of),
    (("oneOf",), _one_of),
    (("if", "then", "else"), _if),
)
