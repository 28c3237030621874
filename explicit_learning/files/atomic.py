"""Files that appear whole or not at all.

A run can be killed between any two instructions. Each file is therefore written under a temporary name in its own
folder, flushed to the disk, and renamed over the final name; the folder is flushed too, because a rename that was not
flushed is lost with the power. Readers see the old file or the new one, never half of one.

Who may read what is written, the umask decides, as for any program's files.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.files.limits import note_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

__all__ = [
    "TEMPORARY_PREFIX",
    "fsync_file",
    "fsync_files",
    "fsync_folder",
    "new_file",
    "new_folder",
    "require_free",
    "write_bytes",
    "write_json",
    "write_text",
    "write_unflushed",
]

FLUSHING_THREADS = 8
# What a kill leaves behind starts with this, so that clean-up and verification do not take it for data.
TEMPORARY_PREFIX = ".writing-"


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, where the file system can (see `note_limit`)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        note_limit("flush folders", _lasting(folder), error)
    finally:
        os.close(handle)


def fsync_file(path: Path) -> None:
    """Flush a file's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_files(paths: Iterable[Path]) -> None:
    """Flush many files to the disk, several at once: file systems join what waits together.

    Raises:
        OSError: For the first file that cannot be flushed.
    """
    with ThreadPoolExecutor(FLUSHING_THREADS) as pool:
        list(pool.map(fsync_file, paths))


def write_bytes(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file whole or not at all (see `new_file`)."""
    with new_file(path, mode=mode) as stream:
        stream.write(data)


def write_unflushed(path: Path, data: bytes) -> None:
    """Write a file that other processes see whole or not at all; after a power cut it may be anything.

    It is for many small files that can be made again, and that are flushed together (see `fsync_files`).

    Raises:
        OSError: If it cannot be written; nothing is left then.
    """
    handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            _set_mode(stream.fileno(), 0o666 & ~_umask(), path.parent)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def new_file(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a stream to a temporary file that becomes ``path`` when the block ends well, and vanishes when it does not.

    Raises:
        OSError: If the folder is missing or not writable, or the disk is full or failing. An old file is untouched
            then, unless its successor could not be flushed; without one, nothing is there.
    """
    is_new = not os.path.lexists(path)
    handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, suffix=f"-{path.name[:80]}", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            _set_mode(stream.fileno(), mode & ~_umask(), path.parent)
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    try:
        fsync_folder(path.parent)
    except OSError:
        if is_new:  # whoever is told that writing failed must not find the file
            with suppress(OSError):
                path.unlink()
        raise


def _set_mode(target: int | Path, mode: int, folder: Path) -> None:
    """Set a mode where the file system lets this user: without it, the file is its owner's alone."""
    try:
        os.chmod(target, mode)  # noqa: PTH101 - of a descriptor, too
    except OSError as error:
        note_limit("set modes", _lasting(folder), error, forbidden=True)


def _lasting(folder: Path) -> Path:
    """Return the nearest folder above temporary ones, from the root: a name that still means something later."""
    absolute = folder.absolute()
    return next(place for place in (absolute, *absolute.parents) if not place.name.startswith(TEMPORARY_PREFIX))


def _umask() -> int:
    """Return this process's umask from the kernel's listing: `os.umask` would change it, for other threads too."""
    with suppress(OSError):
        if found := re.search(rb"^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_bytes(), re.MULTILINE):
            return int(found[1], 8)
    return 0o022


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file whole or not at all (see `write_bytes`)."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write a JSON file for people (indented, key order kept) whole or not at all (see `write_bytes`)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def require_free(path: Path) -> None:
    """Ask for a place where a folder can appear.

    Raises:
        FileExistsError: If something is there that is not an empty folder: nothing is overwritten.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(errno.EEXIST, "something else is there already", str(path))


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` when the block ends well, and vanishes when it does not.

    Raises:
        FileExistsError: If ``path`` exists and is not an empty folder: nothing is overwritten.
        OSError: If the parent is not writable or the disk is full.
    """
    require_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, suffix=f"-{path.name[:80]}", dir=path.parent))
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                fsync_file(file)
            elif file.is_dir():
                fsync_folder(file)
        _set_mode(temporary, 0o777 & ~_umask(), path.parent)
        fsync_folder(temporary)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_folder(path.parent)
