"""Another command of this program, run to its end in a process of its own, for commands that consist of several.

The child gets every stop signal that its parent gets (a terminal sends Ctrl-C to both, which the child counts once),
and ends at a checkpoint; the parent waits for it. `subprocess.run` would kill the child a quarter of a second after
Ctrl-C, and leave it running alone after SIGTERM.
"""

from __future__ import annotations

import subprocess
import sys
from threading import Thread
from typing import IO, TYPE_CHECKING

from explicit_learning.files.progress import say
from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from explicit_learning.launch.signals import StopRequest

__all__ = ["run_child"]

POLL_SECONDS = 0.2


def run_child(arguments: list[str], stop: StopRequest, *, label: str | None = None) -> int:
    """Run ``el ARGUMENTS`` and return its exit code.

    Args:
        arguments: The command and its arguments.
        stop: Notes the signals that this process gets.
        label: Put before each line that the child writes to standard error, where several children write at once.
    """
    command = [sys.executable, str(ROOT / "entrypoint.py"), *arguments]
    stderr = None if label is None else subprocess.PIPE
    with subprocess.Popen(command, stderr=stderr, text=True, errors="replace") as process:  # noqa: S603 - the program itself
        if label is not None and process.stderr is not None:
            Thread(target=_relay, args=(process.stderr, label)).start()
        passed_on = 0
        while True:
            for arrival in stop.arrivals()[passed_on:]:
                process.send_signal(arrival.signal)
                passed_on += 1
            try:
                return process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue


def _relay(stream: IO[str], label: str) -> None:
    for line in stream:
        say(f"{label}: {line.rstrip()}")
