"""`el run` as a person starts it, and the processes that come of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.files.resources import ROOT
from tests.support.preloaded import start

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Launch", "is_alive", "kill_all", "signal_all", "wait_until_gone"]

PATIENCE_SECONDS = 600.0
FIRST_LINE = re.compile(r"^=== launch \S+ · rank .* · pid (\d+) · ", re.MULTILINE)


@dataclass(kw_only=True)
class Launch:
    """One `el run` in a process group of its own; the process becomes the launcher."""

    process: subprocess.Popen[bytes]
    run: Path
    log: Path

    @classmethod
    def of(cls, plan: Path, run: Path, *options: str, command: str = "run") -> Self:
        log = run.parent / f"{run.name}.console"
        arguments = [str(ROOT / "entrypoint.py"), command, str(plan), "--out", str(run), *options]
        with log.open("ab") as stream:
            process = start(
                arguments, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, process_group=0, cwd=run.parent
            )
        return cls(process=process, run=run, log=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            kill_all(self.family())
        self.process.wait()

    def family(self) -> list[int]:
        """Return the process ids of the launcher and everything below it, children first."""
        return [*_descendants(self.process.pid), self.process.pid]

    def ranks(self) -> list[int]:
        """Return the ranks' process ids in order, as far as they have written the first line of their log."""
        children = _children(self.process.pid)
        logs = sorted(self.run.glob("logs/rank-?.log"))
        return [pid for log in logs for pid in map(int, FIRST_LINE.findall(log.read_text())) if pid in children]

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the end and return the exit code, negative for a signal."""
        return self.process.wait(seconds)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


def kill_all(pids: list[int]) -> None:
    """Kill processes at once, like a power cut."""
    signal_all(pids, signal.SIGKILL)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes, as far as they are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], seconds: float = 60.0) -> list[int]:
    """Wait for processes to end and return those that did not."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _descendants(pid: int) -> list[int]:
    return [found for child in _children(pid) for found in (*_descendants(child), child)]
