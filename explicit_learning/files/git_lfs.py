"""Git LFS pointers: the few lines of text that stand in a clone for a file that Git LFS has not fetched.

The format is documented at https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.files.regular import open_regular

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LFS_FIX", "LFS_POINTER", "is_lfs_pointer"]

LFS_POINTER = "a Git LFS pointer, not the file itself"
LFS_FIX = "run `git lfs pull` in the clone that holds it (install git-lfs first), or fetch the file itself"
START = b"version https://git-lfs.github.com/spec/"


def is_lfs_pointer(file: Path | bytes) -> bool:
    """Whether a file, or content that starts with these bytes, is a pointer; what cannot be read is not."""
    if isinstance(file, bytes):
        return file.startswith(START)
    try:
        with open_regular(file) as stream:
            return stream.read(len(START)) == START
    except OSError:
        return False
