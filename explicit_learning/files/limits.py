"""What a file system cannot do and a run can do without: said once on stderr, and kept for the run's event log.

Mounts such as CIFS, FUSE and object stores cannot flush a folder, or let nobody change a file's mode. Everything that
is written there is whole all the same; only a power cut can lose the newest names.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from explicit_learning.files.progress import say

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["note_limit", "noted_limits"]

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
FORBIDDEN = frozenset({errno.EPERM})

_NOTED: dict[str, str] = {}


def note_limit(what: str, path: Path, error: OSError, *, forbidden: bool = False) -> None:
    """Note that a file system cannot do something, or raise what is not such a limit.

    Args:
        what: What it cannot do, such as ``flush folders``.
        path: Where.
        error: What the system answered.
        forbidden: Whether "not permitted" is such a limit, too.

    Raises:
        OSError: If the answer means something else, such as a full or failing disk.
    """
    if error.errno not in UNSUPPORTED | (FORBIDDEN if forbidden else frozenset()):
        raise error
    if what not in _NOTED:
        _NOTED[what] = f"the file system of {path} cannot {what} ({error.strerror})"
        say(f"note: {_NOTED[what]}; going on without")


def noted_limits() -> list[str]:
    """Return what this process has noted."""
    return list(_NOTED.values())
