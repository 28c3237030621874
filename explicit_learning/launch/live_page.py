"""The run's page below the lines of its launch, where standard error is a terminal; elsewhere there are only the lines.

The page is that of `el watch`, and it is made from the run's files. While it is shown, all that the launcher and the
ranks write to standard error goes through a pipe, so that a line appears above the page and not inside it. A page that
fails costs the launch nothing: its lines are then written as they come.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import time
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING

from explicit_learning.launch.console import Console, text_console
from explicit_learning.launch.signals import blocked_stop_signals
from explicit_learning.watch.page import page_of
from explicit_learning.watch.state import RunWatcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["live_page"]

STDERR = 2
PAGE_SECONDS = 1.0  # between two looks at the run's files
CLOSING_SECONDS = 5.0
CHUNK_BYTES = 1 << 16
PLAIN_TERMINALS = ("", "dumb", "unknown")


@contextmanager
def live_page(run: Path) -> Iterator[None]:
    """Show a run's page while the block runs, if standard error is a terminal that can redraw lines.

    Args:
        run: The run directory, with its plan.
    """
    if not os.isatty(STDERR) or os.environ.get("TERM", "") in PLAIN_TERMINALS:
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(STDERR)
    lines, into_lines = os.pipe()
    os.dup2(into_lines, STDERR)
    os.close(into_lines)
    over = Event()
    reader = Thread(target=_show, args=(run, os.dup(terminal), lines, over), name="live page", daemon=True)
    with blocked_stop_signals():  # a signal must interrupt the launcher's main thread
        reader.start()
    try:
        yield
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os.dup2(terminal, STDERR)
        os.close(terminal)
        over.set()
        reader.join(CLOSING_SECONDS)


def _show(run: Path, terminal: int, lines: int, over: Event) -> None:
    """Copy lines from the pipe to the terminal, above the page, until nobody writes any more."""
    with Console(terminal, "wb") as console, os.fdopen(lines, "rb", buffering=0):
        page = _Page(run, console)
        try:
            for chunk in _chunks(lines, over):
                page.advance(chunk)
            page.close()
        except Exception:
            logging.getLogger(__name__).exception("the live page failed; the launch goes on without it")
            for chunk in (b"\n", page.half_line, *_chunks(lines, over)):
                console.write(chunk)


def _chunks(lines: int, over: Event) -> Iterator[bytes]:
    """Yield what is written to a pipe, or ``b""`` where nothing is written for as long as a page is shown."""
    while True:
        ready, _, _ = select.select([lines], [], [], 0 if over.is_set() else PAGE_SECONDS)
        chunk = os.read(lines, CHUNK_BYTES) if ready else b""
        if not chunk and (ready or over.is_set()):
            return
        yield chunk


class _Page:
    """Lines, and below them the newest page.

    Attributes:
        half_line: What was read after the last end of a line.
    """

    def __init__(self, run: Path, console: Console) -> None:
        from rich import console as rich_console
        from rich.live import Live

        self.half_line = b""
        self._terminal = console.fileno()
        self._console = rich_console.Console(file=text_console(console))
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._watcher = RunWatcher(run)
        self._looked_at = 0.0

    def advance(self, chunk: bytes) -> None:
        """Write the lines that are whole by now, and look at the run if it is time."""
        *whole, self.half_line = (self.half_line + chunk).split(b"\n")
        for line in whole:
            self._print(line)
        if time.monotonic() - self._looked_at >= PAGE_SECONDS:
            self._look()

    def close(self) -> None:
        """Write what is left, and leave the newest page on the terminal."""
        if self.half_line:
            self._print(self.half_line)
        self._look()
        self._live.stop()

    def _print(self, line: bytes) -> None:
        from rich.text import Text

        self._take_size()
        self._console.print(Text(line.decode("utf-8", "backslashreplace")), soft_wrap=True, highlight=False)

    def _look(self) -> None:
        """Show the run as it is; before its ranks run, and while its end is being recorded, nothing changes."""
        self._looked_at = time.monotonic()
        state = self._watcher.poll(now=time.time())
        if state is None or not (state.is_running or state.has_ended):
            return
        self._take_size()
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor(show=True)  # a launcher that is killed cannot show it again
        self._live.update(page_of(state), refresh=True)

    def _take_size(self) -> None:
        """Take the terminal's size, which rich looks for on the standard streams only."""
        from rich.console import ConsoleDimensions

        with suppress(OSError):  # the terminal is gone
            size = os.get_terminal_size(self._terminal)
            if size.columns and size.lines:
                self._console.size = ConsoleDimensions(size.columns, size.lines)
