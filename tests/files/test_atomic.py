"""Files appear whole or not at all, whatever goes wrong in between."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files import atomic, limits
from explicit_learning.files.limits import noted_limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fails_on_folders(error: int) -> Callable[[int], None]:
    fsync = os.fsync

    def flush(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(error, os.strerror(error))
        fsync(handle)

    return flush


def fill_half(place: Path) -> None:
    with atomic.new_folder(place) as folder:
        (folder / "file").write_text("x")
        raise RuntimeError("half way")


def write_half(path: Path) -> None:
    with atomic.new_file(path) as stream:
        stream.write(b"three")
        raise RuntimeError("half way")


def test_a_written_file_holds_the_bytes_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "späce and ünicode.json"
    atomic.write_json(path, {"b": 1, "a": "é"})
    assert json.loads(path.read_text()) == {"b": 1, "a": "é"}
    assert path.read_text().startswith('{\n  "b"'), "key order is the writer's"
    assert names(tmp_path) == [path.name]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    atomic.write_bytes(path, b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        atomic.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_new_file_appears_only_when_its_block_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic.new_file(path) as stream:
        stream.write(b"one, ")
        stream.flush()
        assert not path.exists()
        stream.write(b"two")
    assert path.read_bytes() == b"one, two"
    with pytest.raises(RuntimeError, match="half"):
        write_half(path)
    assert path.read_bytes() == b"one, two"
    assert names(tmp_path) == ["file"]


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(tmp_path / "file", float("nan"))
    assert names(tmp_path) == []


def test_a_new_folder_appears_only_when_its_block_ends_well(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "data"
    with atomic.new_folder(place) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("x")
        assert not place.exists()
    assert (place / "sub" / "file").read_text() == "x"
    assert names(tmp_path / "deep") == ["data"]
    assert place.stat().st_mode & 0o777 == 0o755


def test_a_new_folder_vanishes_when_its_block_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="half"):
        fill_half(tmp_path / "data")
    assert names(tmp_path) == []


def test_a_new_folder_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("x")
    with pytest.raises(FileExistsError), atomic.new_folder(tmp_path / "data"):
        pass
    assert names(tmp_path) == ["data"]


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_folder_that_cannot_be_flushed_is_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: int
) -> None:
    monkeypatch.setattr(limits, "_NOTED", {})
    monkeypatch.setattr(os, "fsync", fails_on_folders(error))
    for name in ("a", "b"):
        atomic.write_bytes(tmp_path / name, b"x")
    with atomic.new_folder(tmp_path / "folder") as folder:
        (folder / "file").write_text("x")
    assert names(tmp_path) == ["a", "b", "folder"]
    assert noted_limits() == [f"the file system of {tmp_path} cannot flush folders ({os.strerror(error)})"]
    assert capsys.readouterr().err.count("cannot flush folders") == 1


def test_a_limit_is_noted_of_a_folder_that_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_NOTED", {})
    monkeypatch.setattr(os, "fsync", fails_on_folders(errno.EINVAL))
    with atomic.new_folder(tmp_path / "folder") as folder:
        atomic.write_bytes(folder / "file", b"x")
    assert noted_limits() == [f"the file system of {tmp_path} cannot flush folders (Invalid argument)"]


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_file_whose_folder_fails_to_flush_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    monkeypatch.setattr(os, "fsync", fails_on_folders(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        atomic.write_bytes(path, b"new")
    assert names(tmp_path) == ([] if old is None else ["file"])


def test_a_mode_that_cannot_be_set_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_path: object, _mode: int) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(limits, "_NOTED", {})
    monkeypatch.setattr(os, "chmod", forbidden)
    atomic.write_bytes(tmp_path / "file", b"x")
    with atomic.new_folder(tmp_path / "folder"):
        pass
    assert names(tmp_path) == ["file", "folder"]
    assert noted_limits() == [f"the file system of {tmp_path} cannot set modes (Operation not permitted)"]


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o077, 0o600, 0o700), (0o002, 0o664, 0o775), (0, 0o666, 0o777)])
def test_modes_follow_the_umask(tmp_path: Path, umask: int, file: int, folder: int) -> None:
    before = os.umask(umask)
    try:
        atomic.write_text(tmp_path / "file", "x")
        with atomic.new_folder(tmp_path / "folder") as new:
            (new / "inside").mkdir()
            atomic.write_text(new / "inside" / "file", "x")
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"file": file, "folder": folder, "folder/inside": folder, "folder/inside/file": file}


def test_an_unflushed_file_is_whole_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atomic.write_unflushed(tmp_path / "file", b"old")
    assert ((tmp_path / "file").read_bytes(), names(tmp_path)) == (b"old", ["file"])
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic, "_set_mode", full)
    with pytest.raises(OSError, match="No space left"):
        atomic.write_unflushed(tmp_path / "file", b"new")
    assert ((tmp_path / "file").read_bytes(), names(tmp_path)) == (b"old", ["file"])


def test_many_files_are_flushed_and_an_error_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(atomic, "fsync_file", flushed.append)
    paths = [tmp_path / str(number) for number in range(20)]
    atomic.fsync_files(paths)
    assert sorted(flushed) == sorted(paths)
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        atomic.fsync_files(paths)
