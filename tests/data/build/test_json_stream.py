"""JSON documents read value by value: the same values as the whole document has, and a place for what is wrong."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.data.build.readers import json_stream
from explicit_learning.data.build.readers.json_stream import Member, json_members
from explicit_learning.errors import Refusal

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-1e9, 1e9)
    | st.text('aä"\\/{}[],:\n€𝄞'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('kä"', max_size=3), inner, max_size=4),
    max_leaves=8,
)


def members(data: bytes) -> list[Member]:
    return list(json_members(io.BytesIO(data), file="f.json"))


def refused(data: bytes) -> tuple[str | None, str]:
    with pytest.raises(Refusal) as caught:
        members(data)
    return caught.value.faults[0].file, caught.value.faults[0].found


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 1, "\t"]), st.booleans(), st.integers(1, 40))
def test_an_array_has_the_values_of_the_whole_document(
    values: list[Any], indent: int | str | None, mark: bool, chunk: int
) -> None:
    data = ("\ufeff" * mark + json.dumps(values, indent=indent, ensure_ascii=False)).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)  # the buffer's end falls everywhere
        found = members(data)
    assert [member.value for member in found] == values
    assert [(member.name, member.index) for member in found] == [(None, index) for index in range(len(values))]


@given(st.dictionaries(st.text("abä", max_size=3), VALUES, max_size=5), st.integers(1, 40))
def test_an_object_has_its_members_and_of_arrays_the_elements(document: dict[str, Any], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)
        found = members(json.dumps(document).encode())
    rebuilt: dict[str | None, Any] = {}
    for member in found:
        if member.index is None:
            rebuilt[member.name] = member.value
        else:
            rebuilt.setdefault(member.name, []).append(member.value)
    assert rebuilt == {name: value for name, value in document.items() if value != []}


@pytest.mark.parametrize(
    ("data", "place", "found"),
    [
        (b"", "f.json:1", "not an array and not an object"),
        (b"7", "f.json:1", "not an array and not an object"),
        (b'[{"a": 1},\n {"a" 2}]', "f.json:2", "Expecting ':' delimiter"),
        (b'[{"a": 1}\n\n {"a": 2}]', "f.json:3", "'{' at this place"),
        (b'[{"a": 1},\n', "f.json:2", "Expecting value"),
        (b'[{"a": "', "f.json:1", "Unterminated string starting at"),
        (b"[1]\n[2]", "f.json:2", "'[' behind the document's end"),
        (b'{"a": 1,\n}', "f.json:2", "something else where a member's name should be"),
        (b"[1x]", "f.json:1", "'x' at this place"),
        (b"{1: 2}", "f.json:1", "something else where a member's name should be"),
        (b'["a",\n"\xff"]', "f.json:2", "bytes that are not UTF-8"),
        (b'["a\xc3', "f.json:1", "bytes that are not UTF-8"),
        (b"[" * 100_000, "f.json:1", "nesting without end"),
        (b"[" + b"1" * 5000 + b"]", "f.json:1", "Exceeds the limit (4300 digits) for integer string conversion"),
    ],
)
def test_a_document_that_cannot_be_read_any_further_is_refused_at_its_line(data: bytes, place: str, found: str) -> None:
    file, text = refused(data)
    assert file == place
    assert text.startswith(found)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b'{"a": 1, "a": 2}', 'duplicate key "a"'),
        (b'{"a": NaN}', "NaN, which is not a JSON number"),
        (b'{"a": 1e999}', "1e999, which is too large for a number"),
        (b'{"a": 9007199254740993}', "the integer 9007199254740993, which readers with 64-bit floats round"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair (\\ud800 to \\udfff)"),
    ],
)
def test_a_value_that_readers_disagree_about_is_left_out_and_the_next_one_read(value: bytes, found: str) -> None:
    first, second, third = members(b'[{"a": 0},\n' + value + b',{"a": 3}]')
    assert (first.value, third.value) == ({"a": 0}, {"a": 3})
    assert second.value is None
    assert [(fault.file, fault.found) for fault in second.faults] == [("f.json:2", found)]


def test_a_value_of_more_than_16_mib_is_refused_and_never_held_whole() -> None:
    assert refused(b'["' + b"a" * (40 << 20) + b'"]')[1] == "a value of more than 16,777,216 bytes, or broken JSON"


def test_memory_does_not_grow_with_the_document() -> None:
    row = json.dumps({"question": "q" * 1000, "answer": 1}).encode()

    def peak(rows: int) -> int:
        stream = io.BytesIO(b"[" + b",".join([row] * rows) + b"]")
        tracemalloc.start()
        count = sum(1 for _ in json_members(stream, file="f"))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == rows
        return size

    assert peak(8000) < 1.2 * peak(1000) < 4 << 20
