"""A program whose standard error is a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ERASED_LINE = re.compile(rb"\r?\x1b\[2K")
ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Ended:
    """How the program ended; what the terminal got, without its escape sequences, and what stood on standard output."""

    code: int
    shown: str
    output: str


def run_on_terminal(
    words: Sequence[str], *, cwd: Path | None = None, columns: int = 80, term: str = "xterm-256color"
) -> Ended:
    """Run a program to its end."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = os.environ | {"TERM": term}
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=inside, env=environment, cwd=cwd
        ) as process:
            os.close(inside)
            got = b""
            with suppress(OSError):  # EIO: nobody has the terminal open any more
                while chunk := os.read(terminal, 1 << 16):
                    got += chunk
        os.close(terminal)
        output.seek(0)
        text = ESCAPE.sub(b"", ERASED_LINE.sub(b"\n", got)).decode().replace("\r", "")
        return Ended(code=process.returncode, shown=text, output=output.read().decode())
