"""Which paths a data set may name, and what they lead to.

A data set comes from elsewhere. A path in it must not reach a file outside the asset root, and must mean the same file
on every system: so it is a relative POSIX path in its plainest spelling, and links may not lead outside.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from typing import TYPE_CHECKING

from explicit_learning.errors import found_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["AssetFolder", "Problem", "path_problem"]

# What was found, what was expected, what to do: the three texts of a fault.
Problem = tuple[str, str, str]

_PLAIN = "a plain relative POSIX path inside the asset root"


@lru_cache(maxsize=65536)
def path_problem(path: str) -> Problem | None:
    """Return what is wrong with the spelling of a path in a data set, or ``None``."""
    found = None
    fix = "write the path relative to the asset root, with '/' between its parts"
    if path.startswith("/"):
        found = "an absolute path"
    elif "\\" in path:
        found = "a backslash"
    elif path[1:2] == ":":
        found = "a drive letter"
    elif not path.isprintable():
        found, fix = "a control or other unprintable character", "rename the file"
    else:
        parts = path.split("/")
        if ".." in parts:
            found, fix = "'..', which can lead outside", "put the file inside the asset root and name it directly"
        elif "" in parts or "." in parts:
            found = "an empty part or '.'"
    return (f"{found_text(path)}: {found}", _PLAIN, fix) if found else None


class AssetFolder:
    """The asset root: finds files below it, following links only inside. Folders are resolved once each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._real_root = os.path.realpath(root)
        self._folders: dict[str, str] = {}

    def size_or_problem(self, path: str) -> int | Problem:
        """Return the size in bytes of the regular file at a path, or what is wrong with it."""
        problem = path_problem(path)
        if problem:
            return problem
        try:
            real = self._real(path)
            status = os.stat(real)  # noqa: PTH116 - a string: tens of thousands of paths
        except FileNotFoundError:
            return f"{found_text(path)}: no such file", f"a file below {self._root}", "restore the file"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return f"{found_text(path)}: cannot be read: {reason}", "a readable file", "check permissions and the disk"
        nature = self._nature_problem(real, status)
        return (f"{found_text(path)}: {nature[0]}", *nature[1:]) if nature else status.st_size

    def _nature_problem(self, real: str, status: os.stat_result) -> Problem | None:
        if not real.startswith(self._real_root.rstrip("/") + "/"):
            found, expected = "a link that leads outside the asset root", "a file inside the asset root"
            return found, expected, "copy the file into the asset root"
        if stat.S_ISDIR(status.st_mode):
            return "a folder", "a file", "name the file inside it"
        if not stat.S_ISREG(status.st_mode):
            return "no regular file", "a regular file", "replace it by the file itself"
        if status.st_size == 0:
            return "an empty file", "at least one byte", "restore the file"
        return None

    def _real(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(self._root / folder, strict=True)
        real = f"{self._folders[folder]}/{name}"
        return os.path.realpath(real, strict=True) if os.path.islink(real) else real  # noqa: PTH114 - as above
