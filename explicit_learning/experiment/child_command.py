"""Another command of this program, run to its end in a process of its own, for commands that consist of several.

The child gets every stop signal that its parent gets (a terminal sends Ctrl-C to both, which the child counts once),
and ends at a checkpoint; the parent waits for it. `subprocess.run` would kill the child a quarter of a second after
Ctrl-C, and leave it running alone after SIGTERM.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.files.progress import say
from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.launch.signals import StopRequest

__all__ = ["answered_faults", "ask_child", "ask_process", "run_child"]

POLL_SECONDS = 0.2


def run_child(arguments: list[str], stop: StopRequest, *, label: str | None = None) -> int:
    """Run ``el ARGUMENTS`` and return its exit code.

    Args:
        arguments: The command and its arguments.
        stop: Notes the signals that this process gets.
        label: Put before each line that the child writes to standard error, where several children write at once.
    """
    stderr = None if label is None else subprocess.PIPE
    with subprocess.Popen(_command(arguments), stderr=stderr, encoding="utf-8", errors="replace") as process:  # noqa: S603 - the program itself
        if label is not None and process.stderr is not None:
            Thread(target=_relay, args=(process.stderr, label)).start()
        return _wait(process, stop)


def ask_child(arguments: list[str], stop: StopRequest) -> tuple[int, tuple[Fault, ...]]:
    """Run ``el ARGUMENTS --json``; return its exit code, and the faults of its answer (none if there is no answer).

    Args:
        arguments: The command and its arguments.
        stop: Notes the signals that this process gets.

    Raises:
        OSError: If there is no temporary folder for the answer.
    """
    code, answer = ask_process(_command([*arguments, "--json"]), stop)
    return code, answered_faults(answer, code)


def ask_process(
    command: list[str], stop: StopRequest, *, environment: Mapping[str, str] | None = None, seconds: float = math.inf
) -> tuple[int, bytes]:
    """Run a program; return its exit code, negative for a signal, and what it wrote to standard output.

    Args:
        command: The program and its arguments.
        stop: Notes the signals that this process gets.
        environment: All of its environment; by default this process's.
        seconds: After this time it is killed.

    Raises:
        TimeoutError: If it was killed.
        OSError: If no temporary file can be made for its output.
    """
    with tempfile.TemporaryFile() as answer:  # a pipe would stay open for as long as any rank does
        with subprocess.Popen(command, stdout=answer, env=environment) as process:  # noqa: S603 - the program itself
            code = _wait(process, stop, seconds)
        answer.seek(0)
        return code, answer.read()


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, str(ROOT / "entrypoint.py"), *arguments]


def _wait(process: subprocess.Popen[Any], stop: StopRequest, seconds: float = math.inf) -> int:
    """Wait for a child, and send it every signal that this process gets; after some seconds, kill it.

    Raises:
        TimeoutError: If it was killed.
    """
    passed_on, deadline = 0, time.monotonic() + seconds
    while True:
        for arrival in stop.arrivals()[passed_on:]:
            process.send_signal(arrival.signal)
            passed_on += 1
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                process.kill()
                raise TimeoutError(f"no end within {seconds:g} s") from None


def answered_faults(answer: bytes, code: int) -> tuple[Fault, ...]:
    """Return the faults of an answer as `json_answer` makes it; a child that was killed left none."""
    exit_code = ExitCode(code) if code in set(ExitCode) else ExitCode.INTERNAL
    try:
        return tuple(Fault(**fault, exit_code=exit_code) for fault in json.loads(answer)["faults"])
    except (ValueError, KeyError, TypeError):
        return ()


def _relay(stream: IO[str], label: str) -> None:
    for line in stream:
        say(f"{label}: {line.rstrip()}")
