"""Is there a temporary folder for what belongs to a launch and not to its run?

A launch keeps its manifest and its ranks' outcomes there, in a folder that it locks: so the file system must have locks
(``flock``), which some network file systems do not have. Where vLLM samples, each rank also writes the adapter there at
each step, for its engine to read: the version that is loaded, and the next.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode
from explicit_learning.gates.disk import disk_size, existing_ancestor, free_bytes, missing_bytes
from explicit_learning.gates.shm import SHARED_MEMORY

if TYPE_CHECKING:
    from explicit_learning.errors import Fault
    from explicit_learning.gates.disk import DiskNeed

__all__ = ["check_adapter_versions", "check_temporary_folder", "lock_folder", "temporary_fault"]

VERSIONS = 2
# The header of an adapter's file, and its configuration: below a MiB for a thousand modules.
VERSION_BYTES = 2**20

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


def check_adapter_versions(adapter_bytes: int, *, ranks: int, run: tuple[Path, DiskNeed] | None) -> list[Fault]:
    """Return why the adapter's versions that vLLM's engines read have no room in the temporary folder.

    A temporary folder that cannot be used at all is reported by `check_temporary_folder`, and not here again.

    Args:
        adapter_bytes: The adapter's tensors.
        ranks: Ranks on this machine.
        run: The run folder and what the run takes there, which counts where both lie on one disk; ``None`` if it is
            not known.
    """
    try:
        folder = Path(tempfile.gettempdir()).resolve()
        free = free_bytes(folder)
    except OSError:
        return []
    beside = _on_the_same_disk(folder, run)
    versions = ranks * VERSIONS * (adapter_bytes + VERSION_BYTES)
    what = f"{disk_size(versions)} for {VERSIONS} versions of the adapter for each rank on this machine ({ranks})"
    if folder.is_relative_to(SHARED_MEMORY):
        found, expected = f"a folder in {SHARED_MEMORY}", f"a folder on a disk: it takes {what}"
        fix = f"set TMPDIR to a folder on a disk: {SHARED_MEMORY} belongs to NCCL and the threads that load rows"
        return [CONTEXT.fault(file=folder, found=found, expected=expected, fix=fix)]
    if free >= versions + beside:
        return []
    expected = f"at least {what}"
    if beside:
        expected = f"at least {what}, and {disk_size(beside)} for the planned run on the same disk"
    fix = "set TMPDIR to a folder on a disk with more free space, or free some there"
    return [CONTEXT.fault(file=folder, found=f"{disk_size(free)} free", expected=expected, fix=fix)]


def _on_the_same_disk(folder: Path, run: tuple[Path, DiskNeed] | None) -> int:
    """Return what a run still takes of a folder's disk; nothing for a path that leads nowhere."""
    try:
        if run is None or existing_ancestor(run[0]).stat().st_dev != folder.stat().st_dev:
            return 0
        return missing_bytes(*run)
    except OSError:
        return 0


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
