"""Which paths a dataset may name, and what they lead to.

A dataset comes from elsewhere. A path in it must not reach a file outside the asset root, and must mean the same file
on every system: so it is a relative POSIX path in its plainest spelling, and links may not lead outside.
"""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache
from typing import TYPE_CHECKING

from explicit_learning.errors import Refusal, found_text
from explicit_learning.files.os_errors import missing_file, read_fault

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Context, Fault

__all__ = ["AssetFolder", "path_fault"]

# Two letters at least: one is a drive's.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|data:")


def path_fault(path: str, at: Context, pointer: str | None) -> Fault | None:
    """Return what is wrong with the spelling of a path in a dataset, or ``None``."""
    wrong = _wrong_spelling(path)
    if wrong is None:
        return None
    expected = "a plain relative POSIX path inside the asset root"
    return at.fault(pointer=pointer, found=f"{found_text(path)}: {wrong[0]}", expected=expected, fix=wrong[1])


@lru_cache(maxsize=65536)
def _wrong_spelling(path: str) -> tuple[str, str] | None:
    """Return what was found and what to do, or ``None``; rows repeat their paths, hence the cache."""
    found = None
    fix = "write the path relative to the asset root, with '/' between its parts"
    if _URL.match(path):
        found, fix = "a URL", "download the file into the asset root, and name it there"
    elif path.startswith("/"):
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
    return None if found is None else (found, fix)


class AssetFolder:
    """The asset root: finds files below it, following links only inside. Folders are resolved once each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._real_root = os.path.realpath(root)
        self._folders: dict[str, str] = {}

    def size(self, path: str, at: Context, pointer: str | None = None) -> int:
        """Return the size in bytes of the regular file at a path.

        Args:
            path: The path, relative to the asset root.
            at: The context of a refusal.
            pointer: Where the path is in the context's file.

        Raises:
            Refusal: If the path is not plain, or does not lead to a regular file with content inside the asset root.
        """
        if fault := path_fault(path, at, pointer):
            raise Refusal(fault)

        def refusal(found: str, expected: str, fix: str) -> Refusal:
            return at.refusal(pointer=pointer, found=f"{found_text(path)}: {found}", expected=expected, fix=fix)

        try:
            real = self._real(path)
            status = os.stat(real)  # noqa: PTH116 - a string: tens of thousands of paths
        except FileNotFoundError:
            found, fix = missing_file(self._root / path, fix="restore the file")
            raise refusal(found, f"a file below {self._root}", fix) from None
        except (OSError, ValueError) as error:
            fault = read_fault(error, path, gate=at.gate)
            raise refusal(fault.found, fault.expected, fault.fix) from None
        if not real.startswith(self._real_root.rstrip("/") + "/"):
            found, fix = "a link that leads outside the asset root", "copy the file into the asset root"
            raise refusal(found, "a file inside the asset root", fix)
        if stat.S_ISDIR(status.st_mode):
            raise refusal("a folder", "a file", "name the file inside it")
        if not stat.S_ISREG(status.st_mode):
            raise refusal("not a regular file", "a regular file", "replace it by the file itself")
        if status.st_size == 0:
            raise refusal("an empty file", "at least one byte", "restore the file")
        return status.st_size

    def _real(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(self._root / folder, strict=True)
        real = f"{self._folders[folder]}/{name}"
        return os.path.realpath(real, strict=True) if os.path.islink(real) else real  # noqa: PTH114 - as above
