"""One writer for a run folder.

Two processes that resume the same run would interleave their ledgers without either noticing. The lock is the kernel's
(``flock``), so it ends with the processes that hold it, however they die; a lock made of a file's mere existence would
have to be cleaned up by hand after every power cut. The descriptor stays open across ``exec``, because the process that
checks the plan becomes the launcher without letting go of the run in between. The file's text only
names the holder for a second process, which is refused; the file is never deleted, since a new file under the old name
would be a second lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.os_errors import read_fault, write_fault
from explicit_learning.files.regular import open_regular
from explicit_learning.rundir.layout import LOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["RunLock", "adopt_run_lock", "hold_run", "hold_unchanged"]

WITHOUT_LOCKS = (errno.ENOENT, errno.ENOTDIR, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
CONTEXT = Context(gate="output", exit_code=ExitCode.OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLock:
    """A lock that is held.

    Attributes:
        descriptor: The open file; the lock lasts until every copy of it is closed.
        nonce: Random name of the holder: pids are reused, and differ between containers.
    """

    descriptor: int
    nonce: str


@contextmanager
def hold_run(folder: Path) -> Iterator[RunLock]:
    """Hold a run folder, which is created if missing, until the block ends (after an ``exec`` in it: the process).

    Raises:
        Refusal: With exit code 73 if another process holds the folder or it cannot be written to, and 74 if the disk
            is full or its file system has no locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise Refusal(write_fault(error, folder)) from error
    try:
        nonce = _acquire(descriptor, folder)
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - positional-only
        yield RunLock(descriptor=descriptor, nonce=nonce)
    finally:
        os.close(descriptor)


@contextmanager
def hold_unchanged(folder: Path) -> Iterator[None]:
    """Keep a run from being run until the block ends, without writing to its folder; several readers may do so at once.

    A folder without a lock file, as in a copy, and one whose file system has no locks are run by nobody.

    Raises:
        Refusal: With exit code 73 if the run is running, and 74 if its lock file cannot be read.
    """
    path = folder / LOCK
    with ExitStack() as opened:
        try:
            descriptor = opened.enter_context(open_regular(path)).fileno()
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CONTEXT.at(folder).refusal(
                found=f"{_holder(descriptor)} is running this run",
                expected="a run that nothing writes to",
                fix="wait for it, or stop it (its pid is that of its own container or host)",
            ) from None
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise Refusal(read_fault(error, path, gate=CONTEXT.gate)) from None
        yield


def adopt_run_lock(folder: Path, descriptor: int) -> RunLock:
    """Take over a lock after an ``exec``, and keep this process's own children from inheriting it.

    A rank that outlives its launcher must not hold the run for ever.

    Raises:
        ValueError: If the descriptor is not this folder's lock file, or another process holds the lock.
    """
    try:
        held, expected = os.fstat(descriptor), (folder / LOCK).stat()
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nothing new if it came through the exec
    except OSError as error:
        raise ValueError(f"descriptor {descriptor} is not the lock of {folder}: {error.strerror}") from error
    if (held.st_dev, held.st_ino) != (expected.st_dev, expected.st_ino):
        raise ValueError(f"descriptor {descriptor} is not the lock of {folder}")
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - positional-only
    return RunLock(descriptor=descriptor, nonce=json.loads(os.pread(descriptor, 4096, 0))["nonce"])


def _acquire(descriptor: int, folder: Path) -> str:
    """Lock the open file and write the holder's name into it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        nonce = secrets.token_hex(8)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "nonce": nonce}).encode() + b"\n", 0)
    except BlockingIOError as error:
        raise CONTEXT.at(folder).refusal(
            found=_use(descriptor),
            expected="one process per run folder",
            fix="wait for it, stop it (its pid is that of its own container or host), or choose another folder (--out)",
        ) from error
    except OSError as error:
        fault = write_fault(error, folder, expected="a file system with locks (flock) and space for a small file")
        raise Refusal(fault) from error
    return nonce


def _use(descriptor: int) -> str:
    """Return what keeps the open file locked: readers let other readers in."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return f"{_holder(descriptor)} is running this run"
    return "another process is reading this run, as `el pack` does"


def _holder(descriptor: int) -> str:
    """Return the name of the process that holds the lock."""
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {holder['pid']} (nonce {holder['nonce']})"
    except (ValueError, KeyError, TypeError):
        return "another process"  # it has the lock, and has not yet written its name
