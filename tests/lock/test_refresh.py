"""Resolving again: without an index everything is refused and nothing changes; with one, what still fits stays."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import ROOT
from explicit_learning.lock import lock_sha256, read_lock, subset_faults
from explicit_learning.lock.refresh import Change, refresh

if TYPE_CHECKING:
    from pathlib import Path

LOCKS = (
    *("environment.lock", "environment.cpu.lock", "environment.vllm-cpu.lock"),
    *("trackers.lock", "lint.lock", "image.lock", "docs.lock"),
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with this checkout's locks and requirements."""
    root = tmp_path / "a checkout"
    shutil.copytree(ROOT / "requirements", root / "requirements")
    for lock in LOCKS:
        shutil.copyfile(ROOT / lock, root / lock)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}


def refused(root: Path) -> Refusal:
    before = contents(root)
    with pytest.raises(Refusal) as refusal:
        refresh(root)
    assert contents(root) == before
    return refusal.value


def test_an_unreachable_index_is_refused(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")  # the discard port: nobody listens
    refusal = refused(checkout)
    assert refusal.exit_code is ExitCode.IO == 74
    assert refusal.faults[0].file == "requirements/environment.in"
    assert "check the network" in refusal.faults[0].fix


def test_offline_is_refused(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    assert refused(checkout).exit_code is ExitCode.IO


@pytest.mark.slow
def test_requirements_that_contradict_each_other_are_refused(checkout: Path) -> None:
    with (checkout / "requirements" / "environment.cpu.in").open("a") as stream:
        stream.write("torch==2.10.0  # not what the line above says\n")
    refusal = refused(checkout)
    assert refusal.exit_code is ExitCode.CONTRACT == 65
    assert "torch" in refusal.faults[0].found


@pytest.mark.slow
def test_what_fits_stays_and_what_is_no_longer_declared_goes(checkout: Path) -> None:
    declared = checkout / "requirements" / "environment.cpu.in"
    lines = declared.read_text().splitlines(keepends=True)
    declared.write_text("".join(line for line in lines if not line.startswith("rfc8785")))
    head = (checkout / "environment.lock").read_text().partition("# ///\n")[0]

    done = refresh(checkout)

    assert done.changes == (
        Change(lock="environment.lock", package="rfc8785", before="0.1.4", after=""),
        Change(lock="environment.cpu.lock", package="rfc8785", before="0.1.4", after=""),
        Change(lock="environment.vllm-cpu.lock", package="rfc8785", before="0.1.4", after=""),
    )
    full, *parts = (read_lock(checkout / name) for name in LOCKS[:4])
    assert done.rewritten == {lock.path.name: lock.sha256 for lock in (full, *parts)}
    assert [subset_faults(full, part) for part in parts] == [[], [], []]
    assert full.path.read_text().startswith(head)
    assert {name: lock_sha256(checkout / name) for name in LOCKS[4:]} == {
        name: lock_sha256(ROOT / name) for name in LOCKS[4:]
    }
    assert refresh(checkout).rewritten == {}
