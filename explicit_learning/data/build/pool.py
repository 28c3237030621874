"""Processes that work on a stream: results come in the order of the tasks, and only a few tasks are under way at once.

Workers take no signals: a stop is the parent's decision, and Ctrl-C reaches all processes of a terminal at once. They
end when the parent does, however it ends. They are forked from a server process that has imported the libraries and
has no threads, so a worker starts in milliseconds and shares their memory.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from threading import Thread
from typing import TYPE_CHECKING, Protocol, TypeVar

from explicit_learning.errors import Context, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from multiprocessing.synchronize import Lock, Semaphore

__all__ = ["ROOM", "ROOM_UNIT", "Workers", "room_for", "workers"]

T = TypeVar("T")
R = TypeVar("R")

# Pictures that all workers hold at once have at most so many pixels together, in units of so many: a worker takes 40
# bytes a pixel. A picture of more has all the room.
ROOM_UNIT = 1 << 18
ROOM = 64
_room: tuple[Lock, Semaphore] | None = None

# Tasks under way for each worker: one at work, one waiting.
_AHEAD = 2
_PRELOADED = [
    *("cv2", "numpy", "PIL.Image", "PIL.BmpImagePlugin", "PIL.JpegImagePlugin", "PIL.PngImagePlugin"),
    *("PIL.WebPImagePlugin", "explicit_learning.data.build.rendering", "explicit_learning.data.build.taking"),
]
_BROKEN = Context(gate="program", exit_code=ExitCode.INTERNAL)


class Workers(Protocol):
    """Applies a function to tasks in several processes."""

    def __call__(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield the function's results in the order of the tasks; only a few tasks are taken ahead.

        Raises:
            Refusal: If a worker was killed.
            Exception: What the function raises.
        """


@contextmanager
def workers(count: int) -> Iterator[Workers]:
    """Yield a function that applies another one in ``count`` processes, which end with the block."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    begin = (context.Lock(), context.Semaphore(ROOM))
    with ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=begin) as pool:

        def apply(function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
            waiting: deque[Future[R]] = deque()
            try:
                for task in tasks:
                    with _no_signals():  # a process that this starts inherits it
                        waiting.append(pool.submit(function, task))
                    if len(waiting) >= _AHEAD * count:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            except BrokenProcessPool:
                raise _BROKEN.refusal(
                    found="a worker process was killed, as by a machine that is out of memory",
                    expected="workers that live until the build has ended",
                    fix="run the same command again, which goes on from here, with fewer --workers",
                ) from None
            finally:
                for future in waiting:
                    future.cancel()

        yield apply


@contextmanager
def _no_signals() -> Iterator[None]:
    """Block all signals in this thread but the one that says a child has ended, which the fork server waits for."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(entry: Lock, room: Semaphore) -> None:
    """Prepare a worker: it shares the room for pictures with the others, and ends when its parent has ended."""
    global _room  # noqa: PLW0603 - a process's own, set once at its begin
    _room = entry, room
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_wait_and_end, args=(parent.sentinel,), daemon=True).start()


def _wait_and_end(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(int(ExitCode.STOPPED))


@contextmanager
def room_for(area: int) -> Iterator[None]:
    """Wait until there is room for pictures beside those of the other workers, and hold it inside the block.

    So memory grows neither with the workers nor with the pictures, beyond that of one picture.

    Args:
        area: Pixels of all pictures that the block holds.
    """
    if _room is None:
        yield
        return
    entry, room = _room
    units = min(-(-area // ROOM_UNIT), ROOM)
    with entry:  # one at a time, or two that each have a part would wait for each other
        for _ in range(units):
            room.acquire()
    try:
        yield
    finally:
        for _ in range(units):
            room.release()
