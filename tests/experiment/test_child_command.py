"""Processes that a command of several starts: their answer, their end, and the signals that reach them."""

from __future__ import annotations

import os
import signal
import sys
import time
from threading import Timer
from typing import TYPE_CHECKING

import pytest

from explicit_learning.experiment.child_command import ask_process
from explicit_learning.launch.signals import StopRequest

if TYPE_CHECKING:
    from pathlib import Path


def program(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-S", "-c", text, *arguments]


def test_a_program_is_asked_with_an_environment_of_its_own() -> None:
    text = "import os, sys; print(sorted(os.environ)); sys.exit(3)"
    code, output = ask_process(program(text), StopRequest(), environment={"A": "1", "LC_ALL": "C.UTF-8"})
    assert (code, output) == (3, b"['A', 'LC_ALL']\n")


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    text = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="no end within 3 s"):
        ask_process(program(text, str(tmp_path / "pid")), StopRequest(), seconds=3)
    assert time.monotonic() - started < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_signal_is_passed_on(number: signal.Signals) -> None:
    stop = StopRequest()
    timer = Timer(0.5, stop.note, (number,))
    timer.start()
    code, output = ask_process(program("import time; time.sleep(60)"), stop)
    assert (code, output) == (-number, b"")
