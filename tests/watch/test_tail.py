"""Lines of a file that grows, is cut, and is replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.watch.tail import LAST_BYTES, Follower, last_line

if TYPE_CHECKING:
    from pathlib import Path


def test_each_line_is_yielded_once_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    follower = Follower(file)
    assert list(follower.lines()) == []
    file.write_bytes(b"one\ntw")
    assert list(follower.lines()) == [b"one"]
    with file.open("ab") as stream:
        stream.write(b"o\n\nthree")
    assert list(follower.lines()) == [b"two", b""]
    assert list(follower.lines()) == []


def test_a_file_that_was_cut_or_replaced_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo\n")
    follower = Follower(file)
    assert list(follower.lines()) == [b"one", b"two"]
    file.write_bytes(b"1\n")
    assert list(follower.lines()) == [b"1"]
    other = tmp_path / "other"
    other.write_bytes(b"a\nb\n")
    other.replace(file)
    assert list(follower.lines()) == [b"a", b"b"]


def test_a_start_leaves_out_what_is_before_it(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo\n")
    assert list(Follower(file, offset=4).lines()) == [b"two"]


def test_the_last_whole_line_is_found_from_the_end(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert last_line(file) is None
    file.write_bytes(b"torn")
    assert last_line(file) is None
    file.write_bytes(b"x" * LAST_BYTES + b"\nlast\ntorn")
    assert last_line(file) == b"last"
