"""The output gate on folders and file systems in every state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.atomic import fsync_folder
from explicit_learning.files.resources import ROOT
from explicit_learning.gates import output
from explicit_learning.gates.output import check_output
from explicit_learning.rundir.checkpoints import remove_half_written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OURS, THEIRS = "a" * 64, "b" * 64
NOBODY = 65534


def fault_of(folder: Path, plan: str | None = OURS) -> Any:
    (fault,) = check_output(folder, frozen_config_sha256=plan)
    assert fault.gate == "output"
    assert fault.file == str(folder)
    assert fault.fix
    return fault


def write_run(folder: Path, plan: object = OURS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps({"frozen_config_sha256": plan}))
    return folder


@pytest.mark.parametrize("name", ["run", "a/b/c/run", "with space/läuft ✓", "$(x) 'q' \"d\"", "-rf", "new\nline"])
def test_a_folder_that_can_be_made(name: str, tmp_path: Path, listing: Callable[[Path], list[str]]) -> None:
    assert check_output(tmp_path / name, frozen_config_sha256=OURS) == []
    assert listing(tmp_path) == []


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_output(type(tmp_path)("runs/one"), frozen_config_sha256=OURS) == []
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_and_one_with_leftovers_only(tmp_path: Path, listing: Callable[[Path], list[str]]) -> None:
    assert check_output(tmp_path, frozen_config_sha256=None) == []
    (tmp_path / "lost+found").mkdir()
    for name in (".lock", ".writing-x-plan.json"):
        (tmp_path / name).write_text("")
    assert check_output(tmp_path, frozen_config_sha256=OURS) == []
    assert listing(tmp_path) == [".lock", ".writing-x-plan.json", "lost+found"]


def test_a_run_of_this_plan_may_go_on(tmp_path: Path) -> None:
    assert check_output(write_run(tmp_path), frozen_config_sha256=OURS) == []


def test_another_node_that_sweeps_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: Callable[[Path], list[str]]
) -> None:
    """Several nodes check one folder at once, and the first of them removes what looks half-written there."""
    folder, sweeps = write_run(tmp_path), iter(range(2))

    def swept(place: Path) -> None:
        if next(sweeps, None) is not None:
            remove_half_written(place)
        fsync_folder(place)

    before = listing(folder)
    monkeypatch.setattr(output, "fsync_folder", swept)
    assert check_output(folder, frozen_config_sha256=OURS) == []
    assert next(sweeps, None) is None
    assert listing(folder) == before


def test_a_run_of_another_plan(tmp_path: Path) -> None:
    fault = fault_of(write_run(tmp_path, THEIRS))
    assert fault.exit_code == ExitCode.OUTPUT
    assert fault.found == f"it holds a run of another plan ({THEIRS})"
    assert fault.expected == f"a run of plan {OURS}"


def test_a_file_in_the_place_or_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert fault_of(tmp_path / "file").found == f"{tmp_path / 'file'} is not a folder"
    fault = fault_of(tmp_path / "file" / "run")
    assert fault.found == "Not a directory"
    assert fault.exit_code == ExitCode.OUTPUT


def test_links(tmp_path: Path, listing: Callable[[Path], list[str]]) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "good").symlink_to("target")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    before = listing(tmp_path)
    assert check_output(tmp_path / "good", frozen_config_sha256=OURS) == []
    for folder in (tmp_path / "dangling", tmp_path / "dangling" / "run"):
        fault = fault_of(folder)
        assert fault.exit_code == ExitCode.OUTPUT
        assert fault.found == f"{tmp_path / 'dangling'} is a link to nowhere, which does not exist"
    fault = fault_of(tmp_path / "loop" / "run")
    assert fault.exit_code == ExitCode.OUTPUT
    assert "symbolic links" in fault.found
    assert listing(tmp_path) == before


def test_names_that_are_too_long(tmp_path: Path) -> None:
    for folder in (tmp_path / ("x" * 256), tmp_path / "missing" / ("é" * 128)):
        assert fault_of(folder).exit_code == ExitCode.OUTPUT
    assert "256 bytes" in fault_of(tmp_path / "missing" / ("é" * 128)).found
    assert check_output(tmp_path / ("x" * 255), frozen_config_sha256=OURS) == []


def test_a_read_only_file_system(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("ro")
    for folder in (disk, disk / "run"):
        fault = fault_of(folder)
        assert fault.exit_code == ExitCode.OUTPUT
        assert fault.found == "Read-only file system"


def test_a_read_only_bind_mount(tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=1m")
    bound = tmp_path / "bound"
    bound.mkdir()
    subprocess.run(["mount", "--bind", str(disk), str(bound)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(bound)], check=True)
        assert os.access(bound, os.R_OK)
        assert fault_of(bound / "run").found == "Read-only file system"
        assert check_output(disk / "run", frozen_config_sha256=OURS) == []
    finally:
        subprocess.run(["umount", str(bound)], check=True)


def test_a_full_file_system(small_disk: Callable[[str], Path], listing: Callable[[Path], list[str]]) -> None:
    disk = small_disk("size=64k")
    with (disk / "ballast").open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(bytes(4096)):
            pass
    assert os.statvfs(disk).f_bavail == 0
    fault = fault_of(disk / "run")
    assert fault.exit_code == ExitCode.IO
    assert fault.found == "No space left on device"
    assert listing(disk) == ["ballast"]


def test_no_inodes_left(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=1m,nr_inodes=2")
    (disk / "one").write_text("")
    assert fault_of(disk / "run").exit_code == ExitCode.IO


CHECK_AS_NOBODY = """
import os, pathlib, sys
from explicit_learning.gates.output import check_output
os.setgid(65534); os.setuid(65534)
for fault in check_output(pathlib.Path(sys.argv[1]), frozen_config_sha256=None):
    print(int(fault.exit_code), fault.found)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(("mode", "refused"), [(0o755, True), (0o500, True), (0o000, True), (0o777, False)])
def test_another_users_folder(
    mode: int, refused: bool, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    # pytest's own temporary folders are closed to other users
    base = tmp_path_factory.getbasetemp().parent
    opened = [parent for parent in folder.parents if parent.is_relative_to(base)]
    modes = {parent: parent.stat().st_mode for parent in opened}
    try:
        for parent in opened:
            parent.chmod(modes[parent] | 0o011)
        done = subprocess.run(
            [sys.executable, "-c", CHECK_AS_NOBODY, folder / "run"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    finally:
        for parent in opened:
            parent.chmod(modes[parent])
    assert done.stdout == ("73 Permission denied\n" if refused else "")
