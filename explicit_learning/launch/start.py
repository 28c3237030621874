"""The last act of the light process that checked everything: to become the launcher.

``exec`` keeps the process id that a shell or scheduler knows, and the run's lock, and gives a fresh interpreter an
environment that allocators, hash seeds and CUDA read only at their start.

A launch has a private folder, apart from the run's, whose disk may be full just when ranks must say so. The launcher
removes it; one that is killed cannot. So the folder is locked for as long as the launcher lives, by the kernel, and the
next launch on the machine, of whatever run, removes those that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.launch.environment import rank_environment, scratch_environment
from explicit_learning.launch.multi_node.nodes import NODES_VARIABLE
from explicit_learning.launch.signals import STOP_SIGNALS
from explicit_learning.rundir.launch_manifest import write_launch_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.launch.multi_node.nodes import Nodes
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.launch_manifest import FollowerManifest, LaunchManifest
    from explicit_learning.rundir.run_lock import RunLock

__all__ = ["FOLDER_PREFIX", "LOCK_VARIABLE", "exec_into_launcher", "launch_environment"]

LAUNCHER_MODULE = "explicit_learning.launch"
MANIFEST_FILE = "launch.json"
LOCK_VARIABLE = "EXPLICIT_RUN_LOCK"
FOLDER_PREFIX = "explicit-learning-launch-"


def exec_into_launcher(
    manifest: LaunchManifest | FollowerManifest,
    plan: Plan,
    environment: Mapping[str, str],
    *,
    lock: RunLock | None,
    nodes: Nodes | None = None,
) -> NoReturn:
    """Replace this process by the launcher.

    Args:
        manifest: The launch manifest; on a node that follows another, what that node knows.
        plan: The frozen plan.
        environment: The environment this process was started with.
        lock: The run's lock, which goes along; ``None`` on a node that follows another.
        nodes: This machine's place among several.

    Raises:
        Refusal: If there is no place for the launch manifest (exit code 74).
    """
    variables = launch_environment(manifest, plan, environment, lock=lock, nodes=nodes)
    # Held back until the launcher has its handlers: the default action would end it without a word.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, [sys.executable, "-m", LAUNCHER_MODULE], variables)  # noqa: S606 - no shell is wanted


def launch_environment(
    manifest: LaunchManifest | FollowerManifest,
    plan: Plan,
    environment: Mapping[str, str],
    *,
    lock: RunLock | None,
    nodes: Nodes | None = None,
) -> dict[str, str]:
    """Make the launch's private folder, which the launcher removes, and return the environment that leads there.

    The folder is locked by a descriptor of this process that goes along when it becomes the launcher; folders of
    launchers that were killed are removed.

    Raises:
        Refusal: If the folder cannot be made (exit code 74).
    """
    try:
        _remove_abandoned(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        os.set_inheritable(_lock(folder), True)  # noqa: FBT003 - positional-only
        where = write_launch_manifest(folder / MANIFEST_FILE, manifest)
    except OSError as error:
        raise Refusal(
            Fault(
                gate="launch",
                file=error.filename,
                found=error.strerror or str(error),
                expected="a writable temporary folder",
                fix="set TMPDIR to a writable folder with some space",
                exit_code=ExitCode.IO,
            )
        ) from error
    own = {name: value for name, value in environment.items() if name not in (LOCK_VARIABLE, NODES_VARIABLE)}
    variables = rank_environment(plan, own, interface=nodes.interface if nodes else None).variables
    held = {} if lock is None else {LOCK_VARIABLE: str(lock.descriptor)}
    return variables | scratch_environment(variables, folder) | where | held | (nodes.variables() if nodes else {})


def _lock(folder: Path) -> int:
    """Lock a folder for this process and return the descriptor.

    Raises:
        OSError: If it is no folder, or another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned(temporary: Path) -> None:
    """Remove this user's launch folders that no launcher holds; one without a manifest is just being made."""
    for folder in temporary.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # held, somebody else's, or gone by now
            if folder.lstat().st_uid != os.geteuid() or not (folder / MANIFEST_FILE).is_file():
                continue
            descriptor = _lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
