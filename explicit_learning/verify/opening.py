"""A run, wherever it is: a folder, or an archive that is read without unpacking it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.files.tree import FolderTree
from explicit_learning.verify.archive.tree import ArchiveTree

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.files.tree import Tree

__all__ = ["open_run"]


def open_run(path: Path) -> Tree:
    """Return the files of a run directory, or of an archive of one.

    Raises:
        Refusal: If it is neither.
        OSError: If it cannot be read.
    """
    return FolderTree(path) if path.is_dir() else ArchiveTree(path)
