"""Signals that mean *stop at the next checkpoint*, and nothing else.

A scheduler or a person sends SIGTERM, SIGINT, SIGUSR1 or SIGUSR2 and expects the work to be kept. The default actions
do the opposite: they end the process between two instructions. So every process of a run handles them, each in its way:
the launcher passes them on, a rank notes them and continues to the end of its step.

Between ``exec`` and the moment Python has installed a handler the default action would still apply. The signals are
therefore *blocked* before a process is started, which it inherits, and unblocked once its handler is installed: a
signal that came early is delivered then, not lost.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = [
    "RANK_SAME_SIGNAL_SECONDS",
    "STOP_SIGNALS",
    "Arrival",
    "StopRequest",
    "blocked_stop_signals",
    "die_with_parent",
    "end_at_second_signal",
    "ignore_stop_signals",
    "stop_signals_to",
    "unblock_stop_signals",
]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
# A rank may get a signal from a scheduler, and the same one from its launcher, which a busy machine delays.
RANK_SAME_SIGNAL_SECONDS = 10.0

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One signal that came.

    Attributes:
        signal: Which.
        at: When, in seconds of the monotonic clock.
    """

    signal: signal.Signals
    at: float


class StopRequest:
    """Notes the stop signals that this process gets.

    The handler does one list append and nothing else: a handler runs between any two instructions of the main thread,
    so one that took a lock (`threading.Event.set` does) could wait for the very code it interrupted. Any thread may
    read.
    """

    __slots__ = ("_arrivals",)

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []

    def requested(self) -> bool:
        """Return whether a stop signal came."""
        return bool(self._arrivals)

    def arrivals(self) -> tuple[Arrival, ...]:
        """Return the signals that came, in order."""
        return tuple(self._arrivals)

    def note(self, number: int, _frame: FrameType | None = None) -> None:
        """Note a signal; this is the handler."""
        self._arrivals.append(Arrival(signal=signal.Signals(number), at=time.monotonic()))


def stop_signals_to(request: StopRequest) -> None:
    """Make this process note stop signals in ``request``, and deliver those that were held back until now.

    Must be called in the main thread.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, request.note)
    unblock_stop_signals()


def end_at_second_signal(*, same_seconds: float = RANK_SAME_SIGNAL_SECONDS) -> None:
    """Make this process end with `ExitCode.STOPPED` at a stop signal that comes later than the first and its copies.

    A thread does it, to which the interpreter writes each signal's number: the main thread, where handlers run, may
    wait in native code for other ranks. A child that this process forks has the same pipe open, so it stops writing to
    it: its signals are not this process's. Must be called in the main thread.

    Args:
        same_seconds: How long after the first signal another one counts as its copy.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_leave_wakeup_pipe)
    Thread(target=_end_at_second_signal, args=(reader, same_seconds), daemon=True).start()


def _leave_wakeup_pipe() -> None:
    signal.set_wakeup_fd(-1)


def _end_at_second_signal(reader: int, same_seconds: float) -> None:
    first: float | None = None
    while True:
        for number in os.read(reader, 64):
            if number not in STOP_SIGNALS:
                continue
            now = time.monotonic()
            first = now if first is None else first
            if now - first > same_seconds:
                name = signal.Signals(number).name
                with suppress(OSError):  # not through `sys.stderr`, which the main thread may hold
                    os.write(2, f"ending at once: {name} came {now - first:.0f} s after the first signal\n".encode())
                os._exit(int(ExitCode.STOPPED))


def unblock_stop_signals() -> None:
    """Let stop signals through in this thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def blocked_stop_signals() -> Iterator[None]:
    """Hold stop signals back in this thread, and in processes started inside the block until they unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stop_signals() -> None:
    """Ignore signals that ask this process to stop, from now to its end, a hang-up too.

    Python gives signals with a handler of its own back to the default action before it unloads modules, which takes
    seconds with torch: a signal that came then would end a launcher with another code than it has just recorded.
    """
    for number in (*STOP_SIGNALS, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, however the parent ends.

    Args:
        parent: Process id of the parent that the caller expects.

    Raises:
        ProcessLookupError: If the parent is gone already: the kernel would then never kill this process.
        OSError: If the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        raise ProcessLookupError(f"parent process {parent} has ended")
