"""A plan is a promise: whatever two JSON readers could understand differently is refused, by name."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.jsonl import read_rows
from explicit_learning.files.regular import NotRegularError
from explicit_learning.files.strict_json import load_json, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable

READERS: dict[str, Callable[[Path], object]] = {
    "JSON": partial(load_json, gate="test"),
    "hash": sha256_file,
    "JSON Lines": lambda path: list(read_rows(path, gate="test")),
}


def refused(data: bytes, pointer: str = "") -> str:
    with pytest.raises(Refusal) as caught:
        parse_json(data, gate="plan", file="plan.json")
    (fault,) = caught.value.faults
    assert (fault.gate, fault.file, fault.exit_code) == ("plan", "plan.json", ExitCode.CONTRACT)
    assert fault.fix
    assert fault.pointer == pointer
    return fault.found


def test_plain_documents_are_read() -> None:
    assert parse_json(b'{"a": [1, 2.5, "\xc3\xa9", null, true]}', gate="g", file="f") == {
        "a": [1, 2.5, "é", None, True]
    }


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"  \n", "an empty file"),
        (b"{not json}", "line 1, column 2: Expecting property name enclosed in double quotes"),
        (b'{"a": 1}{', "line 1, column 9: Extra data"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16 (byte-order mark)"),
        (b"\xef\xbb\xbf{}", "a UTF-8 byte-order mark"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"a": 1, "b": 2, "a": 3}', 'duplicate key "a"'),
    ],
)
def test_what_readers_disagree_about_is_refused(data: bytes, found: str) -> None:
    assert refused(data) == found


@pytest.mark.parametrize(
    ("data", "pointer", "found"),
    [
        (b'{"a": {"b": 1, "b": 1}}', "/a", 'duplicate key "b"'),
        (b'{"a": NaN}', "/a", "NaN, which is not a JSON number"),
        (b'{"a": [0, -Infinity]}', "/a/1", "-Infinity, which is not a JSON number"),
        (b'{"a": 9007199254740992}', "/a", "the integer 9007199254740992, which readers with 64-bit floats round"),
        (b'[{"a/b": {"c": -9007199254740992, "d": NaN}}]', "/0/a~1b/c", "the integer -9007199254740992, which readers"),
        (b'{"a": "1e999", "b": 1e999}', "/b", "1e999, which is too large for a number"),
        (b'{"a": "\\u00e9", "b": ["\\ud83d"]}', "/b/0", "half of a surrogate pair"),
        (b'{"a": {"\\udc00": 1}}', "/a", "half of a surrogate pair"),
        (b'"\\ud83d\\u00e9"', "", "half of a surrogate pair"),
    ],
)
def test_a_value_that_readers_disagree_about_is_named_by_its_field(data: bytes, pointer: str, found: str) -> None:
    assert refused(data, pointer).startswith(found)


@pytest.mark.parametrize("levels", [65, 500, 200_000])
def test_nesting_is_bounded(levels: int) -> None:
    assert "nesting" in refused(b"[" * levels + b"]" * levels)


def test_sixty_four_levels_are_read() -> None:
    value = parse_json(b"[" * 64 + b"]" * 64, gate="g", file="f")
    for _ in range(63):
        (value,) = value
    assert value == []


def test_a_number_with_a_million_digits_is_refused() -> None:
    assert "digits" in refused(b"1" * 1_000_000)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with path.open("wb") as stream:
        stream.truncate(200 * 1024 * 1024)
    with pytest.raises(Refusal) as caught:
        load_json(path, gate="plan")
    assert caught.value.faults[0].found == "209,715,200 bytes"


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    for path, found in ((tmp_path, "a folder"), (tmp_path / "absent.json", "no such file")):
        with pytest.raises(Refusal) as caught:
            load_json(path, gate="plan")
        assert (caught.value.faults[0].file, caught.value.faults[0].found) == (str(path), found)


def test_a_device_is_not_read() -> None:
    for device in ("/dev/zero", "/dev/null"):
        with pytest.raises(Refusal, match=r"found: +a device"):
            load_json(Path(device), gate="test")


@pytest.mark.parametrize("reader", ["JSON", "hash", "JSON Lines"])
@pytest.mark.parametrize("written_to", [True, False])
def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path, reader: str, written_to: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR) if written_to else None
    if writer is not None:
        os.write(writer, b'{"a": 1}\n')
    with pytest.raises((Refusal, NotRegularError), match="a pipe"):
        READERS[reader](pipe)
    if writer is not None:
        os.close(writer)


def test_a_socket_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(Refusal, match=r"found: +a socket") as caught:
            load_json(tmp_path / "socket", gate="test")
    assert caught.value.exit_code == ExitCode.CONTRACT


@pytest.mark.parametrize("wrong", ["NaN", "1e999", "9007199254740992", '{"b": 1, "b": 2}'])
@pytest.mark.parametrize(
    "rest", ["", ", }", "]]", ", nul", ", [" * 100_000], ids=["ends", "object", "more", "word", "deep"]
)
def test_what_lies_behind_the_first_wrong_value_may_be_no_json_at_all(wrong: str, rest: str) -> None:
    found = refused(f"[{wrong}{rest}".encode())
    assert found.startswith(("NaN, which", "1e999, which", "the integer 9007199254740992", 'duplicate key "b"'))


def test_many_duplicate_keys_are_counted_in_one_pass() -> None:
    # Each key of 200,000 was counted by a pass over all: 4e10 comparisons, for a file of 2 MB.
    found = refused(("{" + ",".join(f'"{index}":1,"{index}":1' for index in range(100_000)) + "}").encode())
    assert found == 'duplicate key "0", "1", "10", "100", "1000" and 99,995 more'


@pytest.mark.parametrize("number", ["9" * 100_000 + ".0", "1e" + "9" * 100_000])
def test_a_long_number_is_shown_by_its_beginning(number: str) -> None:
    found = refused(number.encode())
    assert found == f"{number[:40]}… ({len(number):,} digits), which is too large for a number"
