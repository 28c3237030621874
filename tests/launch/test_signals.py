"""How one process handles stop signals, and how it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import ROOT
from explicit_learning.launch.signals import STOP_SIGNALS, StopRequest, blocked_stop_signals, stop_signals_to
from tests.launch.conftest import ends_within

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def restored() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_sets_the_flag_and_nothing_else(number: signal.Signals) -> None:
    stop = StopRequest()
    stop_signals_to(stop)
    assert not stop.requested()
    before = time.monotonic()
    os.kill(os.getpid(), number)
    assert stop.requested()
    [arrival] = stop.arrivals()
    assert arrival.signal == number
    assert before <= arrival.at <= time.monotonic()


@pytest.mark.usefixtures("restored")
def test_a_signal_that_came_early_is_delivered_late() -> None:
    stop = StopRequest()
    with blocked_stop_signals():
        # To this thread: threads that other tests left behind do not block it, and the default action ends the process.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, stop.note)
        assert not stop.requested()
    assert stop.requested()


def run_python(code: str) -> subprocess.Popen[str]:
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


FAMILY = """
import os, time
from explicit_learning.launch.signals import die_with_parent
parent = os.getpid()
child = os.fork()
if child == 0:
    die_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""


def test_a_child_dies_with_its_parent() -> None:
    with run_python(FAMILY) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        assert ends_within(child, 2)


PIPE = """
import os, signal, sys, time
from explicit_learning.launch.signals import StopRequest, end_at_second_signal, stop_signals_to
stop_signals_to(StopRequest())
end_at_second_signal(same_seconds=0.2)
child = os.fork()
if child == 0:
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""


def test_a_signal_to_a_forked_child_is_not_a_second_one_of_its_parent() -> None:
    with run_python(PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        os.kill(child, signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            parent.wait(1)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(5) == ExitCode.STOPPED
        os.kill(child, signal.SIGKILL)


ORPHAN = """
from explicit_learning.launch.signals import die_with_parent
try:
    die_with_parent(1)
except ProcessLookupError as error:
    print(error)
"""


def test_a_child_whose_parent_is_gone_does_not_start() -> None:
    with run_python(ORPHAN) as process:
        assert process.communicate()[0] == "parent process 1 has ended\n"


UNLOADING = """
import os, runpy, sys, time, types
class Late:
    def __del__(self):
        self.write(2, b"unloading\\n")
        self.sleep(0.5)
Late.write, Late.sleep = staticmethod(os.write), staticmethod(time.sleep)
sys.modules["late"] = types.ModuleType("late")
sys.modules["late"].last = Late()
runpy.run_module("explicit_learning.launch", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP])
def test_a_signal_that_comes_while_a_launcher_unloads_changes_nothing(number: signal.Signals) -> None:
    """Its exit code is that of the answer which it has given; here, that nobody told it what to launch."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", UNLOADING]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while process.stderr.readline() != b"unloading\n":
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait() == ExitCode.USAGE
