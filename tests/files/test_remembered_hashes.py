"""Files that did not change are not read again; every change is seen, and no trouble with the memory is felt."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files import hashing, remembered_hashes
from explicit_learning.files.hashing import hash_files, sha256_file, snapshot
from explicit_learning.files.remembered_hashes import FILE, remembering_hashes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "explicit-learning" / FILE


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read."""
    found: list[Path] = []

    def reading(path: Path, *rest: Any) -> str:
        found.append(path)
        return sha256_file(path, *rest)

    monkeypatch.setattr(hashing, "sha256_file", reading)
    return found


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that count as old, although they were just written."""
    monkeypatch.setattr(remembered_hashes, "YOUNG_NS", 0)
    (tmp_path / "data").mkdir()
    paths = [tmp_path / "data" / name for name in ("a", "b", "c")]
    for path in paths:
        path.write_text(path.name)
    time.sleep(0.02)  # more than a tick of the file system's clock
    return paths


def hashed(paths: list[Path]) -> dict[Path, str]:
    with remembering_hashes():
        return hash_files(paths)


def test_what_did_not_change_is_read_once(files: list[Path], read: list[Path]) -> None:
    first = hashed(files)
    assert read == files
    assert first == {path: sha256_file(path) for path in files}
    read.clear()
    with remembering_hashes() as memory:
        assert hash_files(files[::-1]) == dict(reversed(first.items()))
        assert list(hash_files(files[::-1])) == files[::-1]
        assert snapshot(files[0].parent) == {path.name: sha256 for path, sha256 in first.items()}
    assert read == []
    assert (memory.files, memory.size) == (9, 9)


def test_every_byte_is_read_where_nothing_is_remembered(files: list[Path], read: list[Path]) -> None:
    hashed(files)
    read.clear()
    assert hash_files(files) == hashed(files)
    assert read == files


def overwrite(path: Path) -> None:
    path.write_text("z")


def overwrite_and_set_the_time_back(path: Path) -> None:
    status = path.stat()
    path.write_text("z")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    status = path.stat()
    other = path.with_name("other")
    other.write_text("z")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


def write_in_place(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, b"z", 0)
    os.close(descriptor)


@pytest.mark.parametrize("change", [overwrite, overwrite_and_set_the_time_back, replace, write_in_place])
def test_every_change_is_seen(files: list[Path], read: list[Path], change: Callable[[Path], None]) -> None:
    first = hashed(files)
    read.clear()
    change(files[1])
    assert hashed(files) == first | {files[1]: sha256_file(files[1])}
    assert read == [files[1]]
    assert first[files[1]] != sha256_file(files[1])


def test_a_young_file_is_not_remembered(files: list[Path], read: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_hashes, "YOUNG_NS", 3_600_000_000_000)
    hashed(files)
    read.clear()
    hashed(files)
    assert read == files


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading(path: Path, *rest: Any) -> str:
        digest = sha256_file(path, *rest)
        if path == files[0]:
            path.write_text("z")
        return digest

    with monkeypatch.context() as patch:
        patch.setattr(hashing, "sha256_file", reading)
        hashed(files)
    with remembering_hashes() as memory:
        assert memory.known({path: path.stat() for path in files}).keys() == set(files[1:])


def damaged(cache: Path) -> None:
    cache.write_bytes(b"not a database" * 1000)


def of_another_form(cache: Path) -> None:
    cache.unlink()
    with sqlite3.connect(cache) as database:
        database.execute("CREATE TABLE hashes (device INTEGER)")


def gone(cache: Path) -> None:
    cache.unlink()


@pytest.mark.parametrize("trouble", [damaged, of_another_form, gone])
def test_a_memory_that_cannot_be_used_only_costs_time(
    files: list[Path], read: list[Path], cache: Path, trouble: Callable[[Path], None]
) -> None:
    first = hashed(files)
    trouble(cache)
    read.clear()
    assert hashed(files) == first
    assert read == files


def test_a_folder_that_cannot_be_made_only_costs_time(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    assert hashed(files) == hash_files(files)


def test_another_process_that_writes_only_costs_time(
    files: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered_hashes, "BUSY_SECONDS", 0.01)
    first = hashed(files)
    with sqlite3.connect(cache, isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert hashed(files) == first
    assert cache.is_file()


def test_the_oldest_are_forgotten(files: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_hashes, "MOST_FILES", 2)
    for path in files:
        hashed([path])
    with sqlite3.connect(cache) as database:
        left = {row[0] for row in database.execute("SELECT sha256 FROM hashes")}
    assert left == {sha256_file(path) for path in files[1:]}


def test_numbers_of_64_bits_fit() -> None:
    assert remembered_hashes._signed((1 << 64) - 1) == -1
    assert remembered_hashes._signed((1 << 63) - 1) == (1 << 63) - 1
