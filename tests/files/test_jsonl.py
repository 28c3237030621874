"""JSON Lines are read as strictly as plans, and a line is named by its number."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import Refusal
from explicit_learning.files import jsonl
from explicit_learning.files.jsonl import bounded_lines, matching_lines, read_rows, stream_rows, write_rows

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault


def test_rows_come_back_with_their_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"b": 1, "a": "é\u2028"}, {"c": None}]
    write_rows(path, rows)
    assert list(read_rows(path, gate="data")) == [(1, rows[0]), (2, rows[1])]
    assert path.read_bytes() == '{"a":"é\u2028","b":1}\n{"c":null}\n'.encode()


@pytest.mark.parametrize(
    ("data", "rows"),
    [(b'{"a":1}\n{"b', 1), (b'{"a":1}\n{"b":2}', 1), (b'{"a":1}\n{"b":2}\n', 2), (b'{"a"', 0), (b"", 0)],
)
def test_a_last_line_torn_end_where_that_is_said(data: bytes, rows: int) -> None:
    found = list(stream_rows(io.BytesIO(data), file="f", gate="data", torn_end=True))
    assert found == [(1, {"a": 1}), (2, {"b": 2})][:rows]


def test_a_torn_line_before_others_is_refused_all_the_same() -> None:
    with pytest.raises(Refusal):
        list(stream_rows(io.BytesIO(b'{"a"\n{"b":2}\n'), file="f", gate="data", torn_end=True))


@pytest.mark.parametrize(
    ("data", "line", "found"),
    [
        (b'{"a":1}\n\n{"b":2}\n', 2, "an empty line"),
        (b'{"a":1}\n  \n', 2, "an empty line"),
        (b'\n{"a":1}\n', 1, "an empty line"),
        (b'\xef\xbb\xbf{"a":1}\n', 1, "a UTF-8 byte-order mark"),
        (b'{"a":1}\n[1]\n', 2, "[1]"),
        (b'{"a":1}\n{"b"', 2, "a last line without a newline"),
        (b'{"a":1}\n{"a":1,"a":2}\n', 2, 'duplicate key "a"'),
        (b'{"a":1}\n{"b":"\xff"}\n', 2, "byte 6 is not UTF-8"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, data: bytes, line: int, found: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    with pytest.raises(Refusal) as caught:
        list(read_rows(path, gate="data"))
    (fault,) = caught.value.faults
    assert (fault.file, fault.found) == (f"{path}:{line}", found)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_file_in_another_encoding_is_one_fault(tmp_path: Path, encoding: str) -> None:
    """Every line of it is wrong, and for one reason."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes('\ufeff{"a":1}\n{"b":2}\n{"c":3}\n'.encode(encoding))
    faults: list[Fault] = []
    with pytest.raises(Refusal) as caught:
        list(read_rows(path, gate="data", collect=faults.append))
    (fault,) = caught.value.faults
    assert (fault.file, fault.found) == (f"{path}:1", "UTF-16 (byte-order mark)")
    assert faults == []


def test_a_byte_order_mark_hides_no_row(tmp_path: Path) -> None:
    """Its row is read all the same: a row that were missing would be reported by everything that counts rows."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a":1}\n{"b":2}\n')
    faults: list[Fault] = []
    assert list(read_rows(path, gate="data", collect=faults.append)) == [(1, {"a": 1}), (2, {"b": 2})]
    assert [(fault.file, fault.found) for fault in faults] == [(f"{path}:1", "a UTF-8 byte-order mark")]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nbc\n", [b"a\n", b"bc\n"]),
        (b"a\n\ntorn", [b"a\n", b"\n", b"torn"]),
        (b"1234\nb\n", [b"1234\n", b"b\n"]),
        (b"12345678901\nb\n", [b"12345\n", b"b\n"]),
        (b"1234567890\nb\n", [b"12345\n", b"b\n"]),
        (b"b\n12345678901", [b"b\n", b"12345"]),
    ],
)
def test_a_line_is_never_longer_than_the_bound(
    monkeypatch: pytest.MonkeyPatch, data: bytes, lines: list[bytes]
) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 5)
    assert list(bounded_lines(io.BytesIO(data))) == lines


@pytest.mark.parametrize("block", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n\n\n", []),
        (b"ax\nb\nxc\n", [b"ax", b"xc"]),
        (b"b\naxx\ntorn x", [b"axx", b"torn x"]),
        (b"xxx\nx\n", [b"xxx", b"x"]),
        (b"123456x\nx\n", [b"x"]),
        (b"x123456\n123456x\nxx\nx123456", [b"xx"]),
    ],
)
def test_lines_that_match_are_found_whatever_the_blocks(
    monkeypatch: pytest.MonkeyPatch, data: bytes, lines: list[bytes], block: int
) -> None:
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", block)
    assert list(matching_lines(io.BytesIO(data), re.compile(b"x"), most=6)) == lines
