"""A temporary folder that a launch cannot use is found before the launch, and named."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.gates.check import check_plan
from explicit_learning.gates.disk import DiskNeed
from explicit_learning.gates.doctor import examine
from explicit_learning.gates.temporary import check_adapter_versions, check_temporary_folder
from explicit_learning.plan.reading import read_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.errors import Fault

MIB = 2**20


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_good_folder_is_left_as_it_was(place: Path) -> None:
    assert check_temporary_folder() == []
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(place: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def no_locks(_descriptor: int, _operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    (fault,) = check_temporary_folder()
    assert (fault.file or "").startswith(str(place))
    assert (fault.found, fault.exit_code) == (os.strerror(error), ExitCode.IO)
    assert "set TMPDIR" in fault.fix
    assert list(place.iterdir()) == []
    document = read_plan(SCHEMAS / "examples" / "plan.json")
    for faults in (check_plan(document, out=None).faults, examine().cpu_faults, examine().gpu_faults):
        assert [found.found for found in faults if found.gate == "launch"] == [fault.found]


def test_a_missing_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "missing"))
    (fault,) = check_temporary_folder()
    assert fault.found == "No such file or directory"


def versions(run: tuple[Path, DiskNeed] | None = None) -> list[Fault]:
    """Check the room for two versions of an adapter of 2 MiB on each of two ranks: 12 MiB with their configuration."""
    return check_adapter_versions(2 * MIB, ranks=2, run=run)


def test_versions_of_the_adapter_need_room_in_the_temporary_folder(
    small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk("size=12m")))
    assert versions() == []
    place = small_disk("size=11m")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    (fault,) = versions()
    assert (fault.gate, fault.file, fault.exit_code) == ("launch", str(place), ExitCode.IO)
    assert fault.found == "11.0 MiB free"
    expected = "at least 12.0 MiB for 2 versions of the adapter for each rank on this machine (2)"
    assert fault.expected == expected
    assert fault.fix.startswith("set TMPDIR to a folder on a disk with more free space")
    (place / "full").write_bytes(bytes(11 * MIB))
    assert [fault.found for fault in versions()] == ["0.0 MiB free"]


def test_a_run_on_the_same_disk_counts_too(small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    place, elsewhere = small_disk("size=20m"), small_disk("size=20m")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    need = DiskNeed(needed_bytes=9 * MIB, files=1)
    assert versions((elsewhere / "run", need)) == []
    (fault,) = versions((place / "runs" / "run", need))
    assert fault.found == "20.0 MiB free"
    assert fault.expected.endswith("on this machine (2), and 9.0 MiB for the planned run on the same disk")
    # A resumed run has taken some of it.
    (place / "run").mkdir()
    (place / "run" / "checkpoint").write_bytes(bytes(2 * MIB))
    (fault,) = versions((place / "run", need))
    assert "and 7.0 MiB for the planned run" in fault.expected
    assert versions((place / "run", DiskNeed(needed_bytes=8 * MIB, files=1))) == []
    (place / "file").write_text("x")
    assert versions((place / "file" / "run", need)) == [], "the output gate has reported it"


def test_versions_are_not_kept_in_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        (fault,) = versions()
    assert (fault.file, fault.exit_code) == (folder, ExitCode.IO)
    assert fault.found == "a folder in /dev/shm"
    assert "a folder on a disk: it takes 12.0 MiB for 2 versions" in fault.expected
    assert fault.fix.startswith("set TMPDIR to a folder on a disk")


def test_a_temporary_folder_that_is_missing_is_told_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "missing"))
    assert len(check_temporary_folder()) == 1
    assert versions() == []
