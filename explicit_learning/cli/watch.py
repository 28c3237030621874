"""`el watch RUN`: a live page of a run on the terminal."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from argparse import ArgumentTypeError
from contextlib import contextmanager
from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer, closed_output, show
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import ExitCode
from explicit_learning.files.progress import say
from explicit_learning.files.typed_json import to_json
from explicit_learning.watch.page import line_of, page_of
from explicit_learning.watch.state import RunWatcher

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.console import RenderableType

    from explicit_learning.watch.state import WatchState

__all__ = ["add_arguments", "run"]

INTERVAL = 1.0
LEAST_INTERVAL, MOST_INTERVAL = 0.1, 3600.0
LINE_INTERVAL = 10.0  # between lines outside a terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", type=given_path, metavar="RUN", help="a run directory; it need not be there yet")
    parser.add_argument("--once", action="store_true", help="show the run as it is now, and end")
    interval = "seconds between two looks (default 1; 10 outside a terminal)"
    parser.add_argument("--interval", type=_seconds, metavar="S", help=interval)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Show a run until it ends or the reader interrupts.

    Raises:
        Refusal: With exit code 64 if the folder is not a run directory.
    """
    watcher = RunWatcher(args.run)
    if args.once or args.json:
        state = watcher.poll(now=time.time())
        if args.json:
            return answer([], as_json=True, watched=None if state is None else to_json(state))
        _print_page(state, args.run)
        return ExitCode.DONE
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if sys.stdout.isatty():
            _watch_page(watcher, args.run, args.interval or INTERVAL)
        else:
            _watch_lines(watcher, args.run, args.interval or LINE_INTERVAL)
    except KeyboardInterrupt:
        return ExitCode.DONE
    return ExitCode.DONE


def _watch_page(watcher: RunWatcher, folder: Path, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    def update(state: WatchState | None) -> None:
        with _to_stdout():
            live.update(_page(state, folder), refresh=True)

    with Live(console=Console(), auto_refresh=False, transient=False) as live:
        _watch(watcher, interval, update)


def _watch_lines(watcher: RunWatcher, folder: Path, interval: float) -> None:
    with _lines(folder) as show_line:
        _watch(watcher, interval, show_line)


def _watch(watcher: RunWatcher, interval: float, shown: Callable[[WatchState | None], None]) -> None:
    while True:
        state = watcher.poll(now=time.time())
        shown(state)
        if state is not None and state.has_ended:
            return
        time.sleep(interval)


@contextmanager
def _lines(folder: Path) -> Iterator[Callable[[WatchState | None], None]]:
    """Yield a function that prints a line for each state that differs from the one before."""
    last = ""

    def show_line(state: WatchState | None) -> None:
        nonlocal last
        text = _waiting(folder) if state is None else line_of(state)
        if text != last:
            show(text)
        last = text

    yield show_line


def _page(state: WatchState | None, folder: Path) -> RenderableType:
    return _waiting(folder) if state is None else page_of(state)


def _print_page(state: WatchState | None, folder: Path) -> None:
    if state is None:
        say(_waiting(folder))
        return
    from rich.console import Console

    with _to_stdout():
        Console().print(page_of(state))


@contextmanager
def _to_stdout() -> Iterator[None]:
    """Refuse where rich cannot write; it ends the program with exit code 1 itself where a pipe is closed.

    Raises:
        Refusal: With exit code 74.
    """
    try:
        yield
    except OSError as error:
        raise closed_output(error) from None
    except SystemExit:
        raise closed_output(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))) from None


def _waiting(folder: Path) -> str:
    return f"{folder}: no run is there yet"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not LEAST_INTERVAL <= value <= MOST_INTERVAL:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from {LEAST_INTERVAL:g} to {MOST_INTERVAL:g}")
    return value
