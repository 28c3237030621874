"""The last act of the light process that checked everything: to become the launcher.

``exec`` keeps the process id that a shell or scheduler knows, and the run's lock, and gives a fresh interpreter an
environment that allocators, hash seeds and CUDA read only at their start.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.launch.environment import rank_environment, scratch_environment
from explicit_learning.launch.manifest import write_launch_manifest
from explicit_learning.launch.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.files.run_lock import RunLock
    from explicit_learning.plan.model import Plan

__all__ = ["FOLDER_PREFIX", "LOCK_VARIABLE", "exec_into_launcher", "launch_environment"]

LAUNCHER_MODULE = "explicit_learning.launch"
LOCK_VARIABLE = "EXPLICIT_RUN_LOCK"
FOLDER_PREFIX = "explicit-launch-"


def exec_into_launcher(
    manifest_document: dict[str, Any], plan: Plan, environment: Mapping[str, str], *, lock: RunLock
) -> NoReturn:
    """Replace this process by the launcher.

    Args:
        manifest_document: The launch manifest as a JSON object.
        plan: The frozen plan.
        environment: The environment this process was started with.
        lock: The run's lock, which goes along.

    Raises:
        Refusal: If there is no place for the launch manifest (exit code 74).
    """
    variables = launch_environment(manifest_document, plan, environment, lock=lock)
    # Held back until the launcher has its handlers: the default action would end it without a word.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, [sys.executable, "-m", LAUNCHER_MODULE], variables)  # noqa: S606 - no shell is wanted


def launch_environment(
    manifest_document: dict[str, Any], plan: Plan, environment: Mapping[str, str], *, lock: RunLock
) -> dict[str, str]:
    """Make the launch's private folder, which the launcher removes, and return the environment that leads there.

    Raises:
        Refusal: If the folder cannot be made (exit code 74).
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        where = write_launch_manifest(folder / "launch.json", manifest_document)
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
    variables = rank_environment(plan, environment).variables
    return variables | scratch_environment(variables, folder) | where | {LOCK_VARIABLE: str(lock.descriptor)}
