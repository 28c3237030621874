"""Standard error of a launch that lasts longer than whoever reads it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Console", "text_console"]


class Console(io.FileIO):
    """A terminal that may go away: training must not end because nobody reads any more."""

    def write(self, data: ReadableBuffer) -> int:
        """Write bytes, or drop them."""
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def text_console(console: Console) -> TextIO:
    """Return a stream of text to a console; it is flushed after each line."""
    buffer = io.BufferedWriter(console)
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)
