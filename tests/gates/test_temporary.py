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
from explicit_learning.gates.doctor import examine
from explicit_learning.gates.temporary import check_temporary_folder
from explicit_learning.plan.reading import read_plan

if TYPE_CHECKING:
    from pathlib import Path


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
