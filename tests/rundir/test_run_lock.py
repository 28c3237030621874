"""The run lock, held by real processes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import ROOT
from explicit_learning.rundir.layout import LOCK
from explicit_learning.rundir.run_lock import adopt_run_lock, hold_run, hold_unchanged

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import pathlib, sys
from explicit_learning.rundir.run_lock import hold_run
with hold_run(pathlib.Path(sys.argv[1])) as lock:
    print(lock.nonce, flush=True)
    sys.stdin.read()
"""
# Checks, becomes the launcher, and starts a child that outlives it.
HOLD_AND_EXEC = """
import os, pathlib, sys
from explicit_learning.rundir.run_lock import hold_run
with hold_run(pathlib.Path(sys.argv[1])) as lock:
    print(lock.nonce, flush=True)
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], sys.argv[1], str(lock.descriptor)])
"""
LAUNCHER = """
import pathlib, subprocess, sys
from explicit_learning.rundir.layout import LOCK
from explicit_learning.rundir.run_lock import adopt_run_lock
lock = adopt_run_lock(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
child = subprocess.Popen(
    [sys.executable, "-c", "import sys; sys.stdin.read()"], stdout=subprocess.DEVNULL, close_fds=False
)
print(lock.nonce, flush=True)
child.wait()
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def refusal_of(folder: Path) -> Any:
    with pytest.raises(Refusal) as caught, hold_run(folder):
        pass
    (fault,) = caught.value.faults
    return fault


def test_a_second_process_is_told_who_holds_the_run(tmp_path: Path) -> None:
    run = tmp_path / "new" / "läuft ✓"
    with start(HOLD, str(run)) as process:
        nonce = line_of(process)
        fault = refusal_of(run)
        assert fault.exit_code == ExitCode.OUTPUT
        assert fault.found == f"process {process.pid} (nonce {nonce}) is running this run"
        process.communicate("")
    with hold_run(run) as lock:
        assert lock.nonce != nonce
        assert json.loads((run / LOCK).read_text()) == {"pid": os.getpid(), "nonce": lock.nonce}
        assert [entry.name for entry in run.iterdir()] == [LOCK]


def test_two_holders_in_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    with hold_run(tmp_path):
        assert str(os.getpid()) in refusal_of(tmp_path).found
    with hold_run(tmp_path):
        pass


def test_the_lock_ends_with_a_killed_process(tmp_path: Path) -> None:
    with start(HOLD, str(tmp_path)) as process:
        line_of(process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        with hold_run(tmp_path):
            pass


def test_the_lock_survives_exec_and_ends_with_the_launcher(tmp_path: Path) -> None:
    with start(HOLD_AND_EXEC, str(tmp_path), LAUNCHER) as process:
        nonce = line_of(process)
        assert line_of(process) == nonce
        assert refusal_of(tmp_path).found == f"process {process.pid} (nonce {nonce}) is running this run"
        process.kill()
        process.wait()
        # The launcher's child still waits for our end of its standard input, but has not inherited the lock.
        with hold_run(tmp_path):
            pass


def test_a_holder_that_has_not_written_its_name(tmp_path: Path) -> None:
    with hold_run(tmp_path):
        for text in ("", "{", "[]", '{"pid": 1}'):
            (tmp_path / LOCK).write_text(text)
            assert refusal_of(tmp_path).found == "another process is running this run"


def test_only_this_folders_lock_can_be_adopted(tmp_path: Path) -> None:
    with hold_run(tmp_path / "one") as lock, hold_run(tmp_path / "two"):
        with pytest.raises(ValueError, match="is not the lock of"):
            adopt_run_lock(tmp_path / "two", lock.descriptor)
        with pytest.raises(ValueError, match="is not the lock of"):
            adopt_run_lock(tmp_path / "three", lock.descriptor)
        with (tmp_path / "two" / LOCK).open("r+") as other, pytest.raises(ValueError, match="is not the lock of"):
            adopt_run_lock(tmp_path / "two", other.fileno())
        assert adopt_run_lock(tmp_path / "one", lock.descriptor).nonce == lock.nonce
        assert not os.get_inheritable(lock.descriptor)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    fault = refusal_of(tmp_path / "file" / "run")
    assert fault.exit_code == ExitCode.OUTPUT
    assert fault.found == "Not a directory"
    assert refusal_of(tmp_path / "file").exit_code == ExitCode.OUTPUT


def reading_refused(folder: Path) -> Any:
    with pytest.raises(Refusal) as caught, hold_unchanged(folder):
        pass
    (fault,) = caught.value.faults
    return fault


def test_readers_keep_a_run_from_being_run_and_let_each_other_in(tmp_path: Path) -> None:
    with hold_run(tmp_path) as lock:
        pass
    written = (tmp_path / LOCK).read_bytes()
    with hold_unchanged(tmp_path), hold_unchanged(tmp_path):
        fault = refusal_of(tmp_path)
        assert fault.found == "another process is reading this run, as `el pack` does"
        assert fault.exit_code == ExitCode.OUTPUT
        assert (tmp_path / LOCK).read_bytes() == written, "a reader writes nothing"
    with hold_run(tmp_path) as again:
        assert again.nonce != lock.nonce


def test_a_reader_is_told_who_runs_the_run(tmp_path: Path) -> None:
    with start(HOLD, str(tmp_path)) as process:
        nonce = line_of(process)
        fault = reading_refused(tmp_path)
        assert fault.found == f"process {process.pid} (nonce {nonce}) is running this run"
        assert fault.exit_code == ExitCode.OUTPUT
        process.communicate("")
    with hold_unchanged(tmp_path):
        pass


def test_a_folder_without_a_lock_is_read_and_stays_without(tmp_path: Path) -> None:
    with hold_unchanged(tmp_path), hold_unchanged(tmp_path / "missing"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "passes"), [(errno.ENOLCK, True), (errno.EOPNOTSUPP, True), (errno.EIO, False)])
def test_a_file_system_without_locks_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, passes: bool
) -> None:
    def fail(_descriptor: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / LOCK).touch()
    monkeypatch.setattr(fcntl, "flock", fail)
    if passes:
        with hold_unchanged(tmp_path):
            pass
    else:
        assert reading_refused(tmp_path).exit_code == ExitCode.IO


def test_a_lock_that_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    assert reading_refused(tmp_path).found == "a pipe"
