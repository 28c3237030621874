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
from contextlib import contextmanager, nullcontext
from multiprocessing import connection
from threading import Thread
from typing import TYPE_CHECKING, Protocol, TypeVar

from explicit_learning.errors import Context, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from multiprocessing.synchronize import Lock

__all__ = ["Workers", "turn_for", "workers"]

T = TypeVar("T")
R = TypeVar("R")

# Pixels from which on a worker waits for its turn.
LARGE_AREA = 1 << 22
_turn: Lock | None = None

# Tasks under way for each worker: one at work, one waiting.
_AHEAD = 2
_PRELOADED = ["cv2", "numpy", "PIL.Image", "PIL.PngImagePlugin", "PIL.JpegImagePlugin", "PIL.WebPImagePlugin"]
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
    context.set_forkserver_preload([*_PRELOADED, "explicit_learning.data.build.rendering"])
    with ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(context.Lock(),)) as pool:

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


def _begin(turn: Lock) -> None:
    """Prepare a worker: it takes turns with the others at large pictures, and ends when its parent has ended."""
    global _turn  # noqa: PLW0603 - a process's own, set once at its begin
    _turn = turn
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_wait_and_end, args=(parent.sentinel,), daemon=True).start()


def _wait_and_end(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(int(ExitCode.STOPPED))


def turn_for(area: int) -> AbstractContextManager[object]:
    """Return a context in which this worker alone holds large pictures, so that memory does not grow with the workers.

    Args:
        area: Pixels of the pictures that are held inside.
    """
    return _turn if _turn is not None and area > LARGE_AREA else nullcontext()
