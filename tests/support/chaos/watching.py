"""Changes under a folder, as the kernel reports them: they show the moment to kill without a hook in what is killed."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Change", "Tree"]

# linux/inotify.h
_MODIFY, _MOVED_TO, _CREATE, _ISDIR, _OVERFLOW = 0x2, 0x80, 0x100, 0x40000000, 0x4000
_MASK = _MODIFY | _MOVED_TO | _CREATE
_HEADER = struct.Struct("iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Change:
    """One change: the POSIX path below the watched folder, and what happened there."""

    path: str
    kind: Literal["created", "modified", "moved"]


class Tree:
    """A folder under watch, with every folder in it; ``logs/`` is left out, which only makes noise."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[int, Path] = {}
        self._handle = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._pending = list(self._add(root))[:0]  # what is there already has not just changed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def changes(self, seconds: float) -> list[Change]:
        """Wait for something to happen, at most so long, and return all that did."""
        if select.select([self._handle], [], [], seconds)[0]:
            data, at = os.read(self._handle, 1 << 16), 0
            while at < len(data):
                watch, mask, _, length = _HEADER.unpack_from(data, at)
                name = data[at + _HEADER.size : at + _HEADER.size + length].rstrip(b"\0").decode()
                at += _HEADER.size + length
                if mask & _OVERFLOW:
                    raise AssertionError("more happened than could be watched")
                self._pending += self._told(watch, mask, name)
        found, self._pending = self._pending, []
        return found

    def _told(self, watch: int, mask: int, name: str) -> Iterator[Change]:
        folder = self._folders.get(watch)
        if folder is None or not name or name == "logs":
            return
        path = folder / name
        kind: Literal["created", "modified", "moved"] = "modified"
        if mask & _CREATE:
            kind = "created"
        elif mask & _MOVED_TO:
            kind = "moved"
        yield Change(path.relative_to(self._root).as_posix(), kind)
        if mask & _ISDIR and kind != "modified":
            yield from self._add(path)

    def _add(self, folder: Path) -> Iterator[Change]:
        """Watch a folder and yield what came into it before it was watched."""
        watch = _LIBC.inotify_add_watch(self._handle, os.fsencode(folder), _MASK)
        if watch < 0:
            return  # it is gone again
        self._folders[watch] = folder
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.name == "logs":
                continue
            yield Change((folder / entry.name).relative_to(self._root).as_posix(), "created")
            if entry.is_dir(follow_symlinks=False):
                yield from self._add(folder / entry.name)
