"""Opening regular files, and nothing else.

A named pipe makes its reader wait for a writer that may never come, and a device may have no end. Neither can be read
twice, so a hash of it would say nothing about what is read next.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

__all__ = ["NotRegularError", "open_regular", "read_regular", "require_regular"]

KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


class NotRegularError(OSError):
    """A path leads to something that is not a regular file; ``strerror`` says to what."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Anything else is refused at once, without waiting for it.

    Raises:
        NotRegularError: If it is a folder, a pipe, a socket or a device.
        OSError: If it cannot be opened.
    """
    require_regular(path, path.stat())  # opening a socket fails with an error that names nothing
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular(path, os.fstat(descriptor))  # another may have taken its place meanwhile
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file (see `open_regular`)."""
    with open_regular(path) as stream:
        return stream.read()


def require_regular(path: Path, status: os.stat_result) -> None:
    """Refuse whatever is not a regular file.

    Args:
        path: The path, for the error.
        status: What the system says of it.

    Raises:
        NotRegularError: If it is a folder, a pipe, a socket or a device.
    """
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(errno.EINVAL, KINDS.get(stat.S_IFMT(status.st_mode), "a device"), str(path))
