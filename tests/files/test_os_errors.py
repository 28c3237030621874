"""Which exit code an operating system's refusal leads to."""

from __future__ import annotations

import errno
import os
import tempfile
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from explicit_learning.data.reading import read_slot_rows
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.os_errors import read_fault, write_fault
from explicit_learning.freeze.freezing import read_draft
from explicit_learning.plan.reading import load_plan

if TYPE_CHECKING:
    from collections.abc import Callable

Form = Literal["NFC", "NFD"]


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
        (errno.EFBIG, ExitCode.IO),
        (errno.EMFILE, ExitCode.IO),
    ],
)
def test_whether_another_path_or_more_space_helps(number: int, code: ExitCode) -> None:
    fault = write_fault(OSError(number, os.strerror(number)), Path("runs/one"))
    assert fault.exit_code == code
    assert fault.found == os.strerror(number)
    assert fault.file == "runs/one"
    assert ("space" in fault.fix) is (number in (errno.ENOSPC, errno.EDQUOT))


@pytest.mark.parametrize(
    ("number", "option"), [(errno.EFBIG, "ulimit -f"), (errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max")]
)
def test_a_limit_of_the_system_is_named(number: int, option: str) -> None:
    error = OSError(number, os.strerror(number))
    assert option in write_fault(error, Path("runs/one")).fix
    assert option in read_fault(error, Path("plan.json"), gate="plan").fix


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


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (read_draft, "draft.json"),
        (load_plan, "plan.json"),
        (read_slot_rows, "rows.jsonl"),
        (read_draft, "folder/a.json"),
    ],
)
def test_a_link_that_leads_nowhere_is_named(tmp_path: Path, read: Callable[[Path], object], name: str) -> None:
    link = tmp_path / Path(name).parts[0]
    link.symlink_to("../elsewhere")
    with pytest.raises(Refusal) as refused:
        read(tmp_path / name)
    (fault,) = refused.value.faults
    subject = "" if link == tmp_path / name else f"{link} is "
    assert fault.found == f"{subject}a link to ../elsewhere, which does not exist"
    assert "cp -rL" in fault.fix


@pytest.mark.parametrize(("there", "asked"), [("NFD", "NFC"), ("NFC", "NFD")])
@pytest.mark.parametrize("name", ["pl\u00e4n.json", "d\u00e4ta/plan.json"])
def test_a_name_in_another_unicode_form_is_named(tmp_path: Path, there: Form, asked: Form, name: str) -> None:
    file = tmp_path / unicodedata.normalize(there, name)
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    wanted = tmp_path / unicodedata.normalize(asked, name)
    for reader in (load_plan, read_draft):
        with pytest.raises(Refusal, match=r"no such file, but .*looks like") as caught:
            reader(wanted)
        assert "a\\u0308" in caught.value.faults[0].found
        assert "\\xe4" in caught.value.faults[0].found
    fault = read_fault(FileNotFoundError(2, "no"), wanted, gate="test")
    assert fault.fix == "rename one of the two, so that both have the same form (NFC is the usual one)"
    assert read_fault(FileNotFoundError(2, "no"), tmp_path / "\u00f6", gate="test").found == "no such file"
