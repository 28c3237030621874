"""Documents and bytes that are almost right: they get further into a reader than random bytes do.

A strategy starts from valid documents and changes one to three things. What Python's own JSON writer cannot write
(duplicate keys, half of a surrogate pair, brackets that never close) is kept as text until the document is written.
"""

from __future__ import annotations

import copy
import json
from codecs import BOM_UTF8
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hypothesis.strategies import DrawFn

__all__ = ["changed_bytes", "changed_json", "changed_lines", "changed_value", "json_text"]

MOST_CHANGES = 3
DEEP = 100_000  # beyond any recursion limit, and 100 kB
LONG = 50_000
MANY = 300


@dataclass(frozen=True, slots=True)
class Raw:
    """A part of a document as it is to be written, whether or not it is JSON."""

    text: str


ODD_NAMES = ("", "a", "schema_version", "$schema", "~1/~0", "\x1b[2J", "\u200b", "\x00", "x" * LONG, "é")
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1.0, 2.0, 1.5, -0.0, 1e308, 5e-324, 2**31, 2**53 - 1, 2**53, -(2**63)),
    *(
        "",
        "a",
        "0",
        "true",
        "\x00",
        "\n",
        "\x1b[2J",
        "\u2028",
        "\u200b",
        "\U0001f600",
        "x" * LONG,
        "../../etc",
        "/",
        "a/b",
    ),
    *([], {}, [[]], [{}], [None], {"": None}, {"a": {"a": {"a": 1}}}),
    *(list(range(MANY)), ["x"] * MANY, {f"name-{index}": index for index in range(MANY)}),
    *map(Raw, ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400, "9" * 5000, "1." + "0" * LONG, "-", "01")),
    *map(Raw, ('"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\\x"', '"', "nul", "'a'", "", ",", '{"a":1,"a":1}')),
    *map(Raw, ("[" * 65 + "]" * 65, "[" * DEEP + "]" * DEEP, "[" * DEEP, '{"a":' * DEEP)),
    Raw("{" + ",".join(f'"{index}":1,"{index}":2' for index in range(MANY)) + "}"),
    Raw("[NaN, [1e999, "),
)


def json_text(value: Any) -> str:
    """Return a value as JSON, its raw parts as they are."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{json_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return json.dumps(value)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parent and the key of every part of a document, at any depth."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


@st.composite
def changed_value(draw: DrawFn, documents: Sequence[Any]) -> Any:
    """Draw a document with one to three changes; its raw parts are written by `json_text`."""
    holder = [copy.deepcopy(draw(st.sampled_from(documents)))]
    for _ in range(draw(st.integers(1, MOST_CHANGES))):
        places = list(_places(holder))
        if not places:
            break
        # A whole document that is exchanged is refused at once, so one in ten is.
        first = 0 if len(places) == 1 or draw(st.integers(0, 9)) == 0 else 1
        parent, key = places[draw(st.integers(first, len(places) - 1))]
        draw(st.sampled_from(CHANGES))(draw, parent, key, places)
    return holder[0] if holder else None


def _drop(_draw: DrawFn, parent: Any, key: Any, _places: Sequence[tuple[Any, Any]]) -> None:
    del parent[key]


def _exchange(draw: DrawFn, parent: Any, key: Any, _places: Sequence[tuple[Any, Any]]) -> None:
    parent[key] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))


def _take_another(draw: DrawFn, parent: Any, key: Any, places: Sequence[tuple[Any, Any]]) -> None:
    other, name = places[draw(st.integers(0, len(places) - 1))]
    parent[key] = copy.deepcopy(other[name])


def _nudge(draw: DrawFn, parent: Any, key: Any, places: Sequence[tuple[Any, Any]]) -> None:
    value = parent[key]
    if isinstance(value, bool) or value is None or isinstance(value, Raw | dict | list):
        _exchange(draw, parent, key, places)
    elif isinstance(value, str):
        at, more = draw(st.integers(0, len(value))), draw(st.text(max_size=3))
        parent[key] = value[:at] + more + value[at + draw(st.integers(0, 3)) :]
    else:
        parent[key] = draw(st.sampled_from((value + 1, value - 1, -value, float(value), value * 2**20, value / 3)))


def _repeat(draw: DrawFn, parent: Any, key: Any, _places: Sequence[tuple[Any, Any]]) -> None:
    """Repeat an item of a list; give an object a key twice."""
    if isinstance(parent, list):
        parent[key:key] = [copy.deepcopy(parent[key]) for _ in range(draw(st.sampled_from((1, 2, MANY))))]
    else:
        text, value = json.dumps(key), json_text(parent[key])
        parent[key] = Raw(f"{value},{text}:{value}")


def _add(draw: DrawFn, parent: Any, key: Any, _places: Sequence[tuple[Any, Any]]) -> None:
    value = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
    if isinstance(parent, list):
        parent.insert(key, value)
    else:
        near = st.builds(lambda at: key[:at] + key[at + 1 :], st.integers(0, len(key)))
        parent[draw(st.sampled_from(ODD_NAMES) | near)] = value


def _rename(draw: DrawFn, parent: Any, key: Any, places: Sequence[tuple[Any, Any]]) -> None:
    if isinstance(parent, list):
        _drop(draw, parent, key, places)
    else:
        parent[draw(st.sampled_from(ODD_NAMES)) + key] = parent.pop(key)


CHANGES: tuple[Callable[[DrawFn, Any, Any, Sequence[tuple[Any, Any]]], None], ...] = (
    *(_drop, _exchange, _exchange, _take_another, _nudge, _nudge, _repeat, _add, _rename),
)


@st.composite
def changed_json(draw: DrawFn, documents: Sequence[Any]) -> bytes:
    """Draw the bytes of a document that was changed: in its values, and sometimes in how it is encoded."""
    text = json_text(draw(changed_value(documents)))
    return draw(_encoded(text.encode("utf-8", "surrogatepass")))


@st.composite
def changed_lines(draw: DrawFn, documents: Sequence[Sequence[Any]]) -> bytes:
    """Draw the bytes of JSON Lines of which one row was changed, or the order or the number of rows."""
    rows = list(draw(st.sampled_from(documents)))
    changed = draw(st.integers(0, len(rows) - 1))
    lines = [json_text(row).encode() for row in rows]
    if draw(st.integers(0, 4)):
        lines[changed] = json_text(draw(changed_value([rows[changed]]))).encode("utf-8", "surrogatepass")
    else:
        odd = st.sampled_from((b"", b" ", b"\xff", b"1", b"[]", b"null", lines[0], lines[-1], b"\x00" * MANY))
        lines[changed : changed + draw(st.integers(0, 1))] = [draw(odd)] * draw(st.sampled_from((1, 2, MANY)))
    end = draw(st.sampled_from((b"\n", b"\n", b"\n", b"\r\n", b"\r")))
    data = end.join(lines) + (end if draw(st.integers(0, 5)) else b"")
    return draw(_encoded(data))


@st.composite
def _encoded(draw: DrawFn, data: bytes) -> bytes:
    """Draw bytes as they are, most of the time; else with a mark before them, something behind them, or changed."""
    kind = draw(st.integers(0, 15))
    if kind == 0:
        return BOM_UTF8 + data
    if kind == 1:
        return data.decode("utf-8", "replace").encode("utf-16")
    if kind == 2:
        return data + draw(st.sampled_from((b"\x00", b" ", b"\n\n", b"{}", b"]", b"\xff")))
    if kind == 3:
        return draw(changed_bytes([data]))
    return data


@st.composite
def changed_bytes(draw: DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Draw one of some files with one to three changes: bytes that differ, are cut, put in or repeated."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, MOST_CHANGES))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 8) | st.integers(0, len(data)))
        kind = draw(st.sampled_from(("flip", "set", "cut", "drop", "insert", "repeat")))
        if kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
        elif kind == "set":
            value = draw(
                st.sampled_from((b"\x00", b"\xff", b"\x7f", b"0", b"9", b"\x80", b"\xff\xff\xff\xff", b"\x00" * 8))
            )
            data = data[:at] + value + data[at + len(value) :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "drop":
            data = data[:at] + data[at + length :]
        elif kind == "insert":
            data = data[:at] + draw(st.binary(max_size=16)) + data[at:]
        elif kind == "repeat":
            data = data[:at] + data[at : at + length] * draw(st.integers(2, 4)) + data[at + length :]
    return data
