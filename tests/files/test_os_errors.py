"""Which exit code an operating system's refusal leads to."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.os_errors import read_fault, write_fault


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EROFS, ExitCode.OUTPUT),
        (errno.EACCES, ExitCode.OUTPUT),
        (errno.EPERM, ExitCode.OUTPUT),
        (errno.ENOTDIR, ExitCode.OUTPUT),
        (errno.EEXIST, ExitCode.OUTPUT),
        (errno.EISDIR, ExitCode.OUTPUT),
        (errno.ENAMETOOLONG, ExitCode.OUTPUT),
        (errno.ELOOP, ExitCode.OUTPUT),
        (errno.ENOSPC, ExitCode.IO),
        (errno.EDQUOT, ExitCode.IO),
        (errno.EIO, ExitCode.IO),
        (errno.ESTALE, ExitCode.IO),
    ],
)
def test_whether_another_path_or_more_space_helps(number: int, code: ExitCode) -> None:
    fault = write_fault(OSError(number, os.strerror(number)), Path("runs/one"))
    assert fault.exit_code == code
    assert fault.found == os.strerror(number)
    assert fault.file == "runs/one"
    assert ("space" in fault.fix) is (number in (errno.ENOSPC, errno.EDQUOT))


def test_an_error_without_a_number() -> None:
    fault = write_fault(OSError("odd"), Path("x"))
    assert (fault.found, fault.exit_code) == ("odd", ExitCode.IO)


def test_no_temporary_folder_is_no_matter_of_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
    with pytest.raises(FileNotFoundError) as raised:
        tempfile.mkdtemp()
    fault = write_fault(raised.value, tmp_path)
    assert "TMPDIR" in fault.fix
    assert "--out" not in fault.fix
    assert fault.exit_code == ExitCode.IO


@pytest.mark.parametrize(
    ("error", "found", "code"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "no such file", ExitCode.CONTRACT),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be read: Permission denied", ExitCode.IO),
        (OSError(errno.EIO, "Input/output error"), "cannot be read: Input/output error", ExitCode.IO),
        (OSError("odd"), "cannot be read: odd", ExitCode.IO),
        (ValueError("embedded null byte"), "cannot be read: embedded null byte", ExitCode.IO),
    ],
)
def test_why_a_file_cannot_be_read(error: OSError | ValueError, found: str, code: ExitCode) -> None:
    fault = read_fault(error, Path("plan.json"), gate="plan")
    assert (fault.gate, fault.file, fault.found, fault.exit_code) == ("plan", "plan.json", found, code)
