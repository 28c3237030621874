"""Is there a temporary folder for what belongs to a launch and not to its run?

A launch keeps its manifest and its ranks' outcomes there, in a folder that it locks: so the file system must have locks
(``flock``), which some network file systems do not have.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault

__all__ = ["check_temporary_folder", "lock_folder", "temporary_fault"]

CONTEXT = Context(
    gate="launch",
    fix="set TMPDIR to a writable folder with some free space, on a file system with locks, such as a local disk",
    exit_code=ExitCode.IO,
)


def check_temporary_folder() -> list[Fault]:
    """Return why a launch could not keep its folder in the temporary folder; nothing is left behind there."""
    try:
        with tempfile.TemporaryDirectory(prefix="explicit-learning-probe-") as folder:
            os.close(lock_folder(folder))
    except OSError as error:
        return [temporary_fault(error)]
    return []


def lock_folder(folder: Path | str) -> int:
    """Lock a folder for this process and return the descriptor.

    Raises:
        OSError: If it is not a folder, its file system has no locks, or another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        error.filename = os.fspath(folder)
        raise
    return descriptor


def temporary_fault(error: OSError) -> Fault:
    """Explain why a launch has no place in the temporary folder."""
    found, expected = error.strerror or str(error), "a writable temporary folder with locks (flock)"
    return CONTEXT.fault(file=error.filename, found=found, expected=expected)
