"""A run in memory: copied in no time, changed freely, and verified like any other tree."""

from __future__ import annotations

import errno
import io
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from explicit_learning.files.regular import NotRegularError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from explicit_learning.files.tree import Tree

__all__ = ["MemoryTree"]


@dataclass(slots=True)
class MemoryTree:
    """Files by name, with their bytes.

    Attributes:
        data: Every file's bytes, by name.
        others: What is neither a file nor a folder, by name.
    """

    data: dict[str, bytes] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Tree) -> MemoryTree:
        """Read a whole tree.

        Raises:
            OSError: If a file cannot be read.
        """
        data = {}
        for name in tree.files:
            with tree.open(name) as stream:
                data[name] = stream.read()
        return cls(data, dict(tree.others))

    def copy(self) -> MemoryTree:
        """Return another tree with the same files; bytes are shared, for nothing can change them."""
        return MemoryTree(dict(self.data), dict(self.others))

    @property
    def files(self) -> Mapping[str, int]:
        """Size in bytes of every file, by name, sorted."""
        return {name: len(self.data[name]) for name in sorted(self.data)}

    def place(self, name: str) -> str:
        """Return how messages name a file."""
        return f"run/{name}" if name else "run"

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            NotRegularError: If it is a link, or anything else but a file.
            FileNotFoundError: If it is missing.
        """
        if name in self.others:
            raise NotRegularError(errno.EINVAL, self.others[name], self.place(name))
        if name not in self.data:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.place(name))
        return io.BytesIO(self.data[name])
