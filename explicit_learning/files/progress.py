"""Progress on stderr: a bar on a terminal, plain lines otherwise.

A job's log is read with ``tail`` or from a scheduler's file, where a bar that redraws itself is noise; and work that
ends within a second needs no progress at all.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["progress", "say"]

QUIET_SECONDS = 1.0
LINE_SECONDS = 5.0


def say(text: str) -> None:
    """Write one line to stderr at once."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, total: int | None, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Yield a function that advances the progress by a number of ``unit``.

    Args:
        label: What is being done, as a phrase.
        total: How much there is to do, in ``unit``; ``None`` where nobody knows.
        unit: Name of the unit (``""`` for plain counts, ``"B"`` for bytes).
    """
    if sys.stderr.isatty():
        with _bar(label, total, unit) as advance:
            yield advance
    else:
        yield _lines(label, total, unit)


@contextmanager
def _bar(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = DownloadColumn() if unit == "B" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(label, total=total)
        yield lambda amount: display.advance(task, amount)


def _lines(label: str, total: int | None, unit: str) -> Callable[[int], None]:
    started = last = time.monotonic()
    done = 0

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        if now - started > QUIET_SECONDS and now - last > LINE_SECONDS:
            last = now
            scale, name = (1e6, "MB") if unit == "B" else (1, unit)
            of_total = "" if total is None else f" of {total / scale:,.0f}"
            say(f"{label}: {done / scale:,.0f}{of_total} {name}".rstrip())

    return advance
