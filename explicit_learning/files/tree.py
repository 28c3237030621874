"""The files of a folder or of an archive, under one interface: what reads a finished run does not ask where it lies.

Names are POSIX paths relative to the root. A tree is never written to. Links are listed as what they are and never
followed: what a link leads to is not part of the tree, and may be anywhere.
"""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from explicit_learning.errors import Context, Refusal
from explicit_learning.files.hashing import THREADS, sha256_stream
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.progress import progress
from explicit_learning.files.regular import KINDS, NotRegularError, open_regular
from explicit_learning.files.strict_json import parse_json
from explicit_learning.files.typed_json import parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import BinaryIO

__all__ = [
    "UNREADABLE",
    "FolderTree",
    "SubTree",
    "Tree",
    "hash_tree",
    "tree_bytes",
    "tree_document",
    "tree_json",
    "tree_sha256",
]

T = TypeVar("T")
MAX_GROWN_BYTES = 128 * 1024 * 1024  # the marker and the trainer's state hold a log, which grows with the steps
UNREADABLE = "a folder that cannot be read"


class Tree(Protocol):
    """Files by name."""

    @property
    def files(self) -> Mapping[str, int]:
        """Size in bytes of every regular file, by name, sorted."""

    @property
    def others(self) -> Mapping[str, str]:
        """What is neither a regular file nor a folder that can be read, by name: a link, a pipe, a device."""

    def place(self, name: str) -> str:
        """Return how messages name a file or folder of the tree; an empty name is the tree itself."""

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading; several may be open at once, in several threads.

        Raises:
            OSError: If it is missing, or cannot be read.
        """


class FolderTree:
    """A folder's files, as they were when it was listed."""

    def __init__(self, root: Path) -> None:
        """List a folder.

        Raises:
            OSError: If it cannot be read.
        """
        self.root = root
        self.files: dict[str, int] = {}
        self.others: dict[str, str] = {}
        for name, status in sorted(_entries(str(root), ""), key=itemgetter(0)):
            if status is None:
                self.others[name] = UNREADABLE
            elif stat.S_ISREG(status.st_mode):
                self.files[name] = status.st_size
            else:
                link = stat.S_ISLNK(status.st_mode)
                self.others[name] = "a link" if link else KINDS.get(stat.S_IFMT(status.st_mode), "a device")

    def place(self, name: str) -> str:
        """Return a file's path."""
        return str(self.root / name) if name else str(self.root)

    def open(self, name: str) -> BinaryIO:
        """Open a file of the list.

        Raises:
            NotRegularError: If it is a link, or anything else but a file.
            OSError: If it is not in the list, or cannot be read.
        """
        if name in self.others:
            raise NotRegularError(errno.EINVAL, self.others[name], self.place(name))
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.place(name))
        return open_regular(self.root / name)


class SubTree:
    """Files of one folder of a tree, as a tree of their own."""

    def __init__(self, tree: Tree, folder: str, names: Iterable[str]) -> None:
        """Take some files below a folder.

        Args:
            tree: The tree.
            folder: The folder's POSIX path in it, without a slash at its end.
            names: The files, by their names in the tree.
        """
        self._tree, self._prefix = tree, f"{folder}/"
        self.files = {name.removeprefix(self._prefix): tree.files[name] for name in names}
        self.others: dict[str, str] = {}

    def place(self, name: str) -> str:
        """Return how the whole tree's messages name a file."""
        return self._tree.place(f"{self._prefix}{name}" if name else self._prefix[:-1])

    def open(self, name: str) -> BinaryIO:
        """Open a file of the folder.

        Raises:
            OSError: If it is missing, or cannot be read.
        """
        return self._tree.open(f"{self._prefix}{name}")


def _entries(folder: str, prefix: str) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield all entries below a folder but folders, with their status; a folder that cannot be read has none.

    Without recursion, for deep trees.
    """
    waiting = [(folder, prefix)]
    while waiting:
        path, start = waiting.pop()
        try:
            opened = os.scandir(path)
        except OSError:
            if not start:
                raise
            yield start.removesuffix("/"), None
            continue
        with opened as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, f"{start}{entry.name}/"))
                else:
                    with suppress(FileNotFoundError):  # removed meanwhile
                        yield f"{start}{entry.name}", entry.stat(follow_symlinks=False)


def tree_bytes(tree: Tree, name: str, *, gate: str, max_bytes: int = MAX_GROWN_BYTES, fix: str | None = None) -> bytes:
    """Return a small file's bytes.

    Raises:
        Refusal: If it is missing, unreadable, or larger than ``max_bytes``.
    """
    place = tree.place(name)
    size = tree.files.get(name, 0)
    if size > max_bytes:
        raise Context(gate=gate, file=place).refusal(
            found=f"{size:,} bytes",
            expected=f"at most {max_bytes:,} bytes",
            fix="check that this is the right file: no document of this kind is so large",
        )
    try:
        with tree.open(name) as stream:
            return stream.read(max_bytes)
    except OSError as error:
        raise Refusal(read_fault(error, Path(place), gate=gate, missing_fix=fix)) from None


def tree_json(tree: Tree, name: str, *, gate: str, fix: str | None = None, not_finite: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """Return a file as strict JSON (see `parse_json`), with NaN and infinities if ``not_finite``.

    Raises:
        Refusal: If it is missing, unreadable, too large, or not strict UTF-8 JSON.
    """
    data = tree_bytes(tree, name, gate=gate, fix=fix)
    return parse_json(data, gate=gate, file=tree.place(name), fix=fix, not_finite=not_finite)


def tree_document(tree: Tree, name: str, kind: type[T], *, gate: str, fix: str | None = None) -> T:
    """Return a file as a typed document that has passed the schema of its class.

    Raises:
        Refusal: If it is missing, unreadable, not strict JSON, or breaks its schema; with every fault.
    """
    return parsed(tree_json(tree, name, gate=gate, fix=fix), kind, gate=gate, file=tree.place(name), fix=fix)


def tree_sha256(tree: Tree, name: str, advance: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file's bytes.

    Raises:
        OSError: If it is missing, or cannot be read.
    """
    with tree.open(name) as stream:
        return sha256_stream(stream, advance)


def hash_tree(tree: Tree, names: Iterable[str]) -> tuple[dict[str, str], dict[str, OSError]]:
    """Hash files, several at once, with progress when it takes long.

    Returns:
        SHA-256 by name, and by name why a file could not be read.
    """
    wanted = list(names)
    hashes: dict[str, str] = {}
    errors: dict[str, OSError] = {}

    def one(name: str) -> None:
        try:
            hashes[name] = tree_sha256(tree, name, advance)
        except OSError as error:
            errors[name] = error

    total = sum(tree.files.get(name, 0) for name in wanted)
    with progress("hashing", total, "B") as advance, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, wanted))
    return dict(sorted(hashes.items())), dict(sorted(errors.items()))
