"""Hashes of files and folders: the identities that a plan freezes.

A folder's identity is the canonical hash of ``{relative POSIX path: SHA-256 of the bytes}``; it does not depend on
where the folder lies, on file times or on the order in which the system lists it.
"""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.progress import progress
from explicit_learning.files.regular import open_regular
from explicit_learning.files.remembered_hashes import hash_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import BinaryIO

__all__ = [
    "hash_files",
    "sha256_file",
    "sha256_stream",
    "snapshot",
    "snapshot_files",
    "snapshot_sha256",
    "visible_entries",
]

CHUNK = 1 << 20
THREADS = 8


def sha256_file(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file's bytes, read in chunks of 1 MiB.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
    """
    with open_regular(path) as stream:
        return sha256_stream(stream, advance)


def sha256_stream(stream: BinaryIO, advance: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of what is left of an open file, read in chunks of 1 MiB.

    Raises:
        OSError: If the file cannot be read.
    """
    digest = hashlib.sha256()
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
        if advance:
            advance(len(chunk))
    return digest.hexdigest()


def hash_files(paths: Iterable[Path], *, progress_label: str = "hashing") -> dict[Path, str]:
    """Hash many files at once, with progress when it takes long. hashlib frees the interpreter lock, so threads do.

    Small files go to a thread together: handing over a file of a few kilobytes costs more than hashing it. Inside
    `remembering_hashes` a file that did not change since it was hashed is not read.

    Raises:
        OSError: For the first file that cannot be read.
    """
    statuses = {path: path.stat() for path in paths}
    memory = hash_memory()
    known = memory.known(statuses) if memory else {}
    sizes = {path: status.st_size for path, status in statuses.items() if path not in known}
    begun_ns = time.time_ns()

    def hashed(batch: list[Path]) -> list[str]:
        return [sha256_file(path, advance) for path in batch]

    with progress(progress_label, sum(sizes.values()), "B") as advance, ThreadPoolExecutor(THREADS) as pool:
        digests = [digest for batch in pool.map(hashed, _batches(sizes)) for digest in batch]
    new = dict(zip(sizes, digests, strict=True))
    if memory:
        memory.note(new, statuses, begun_ns=begun_ns)
    return {path: new[path] if path in new else known[path] for path in statuses}


def _batches(sizes: dict[Path, int]) -> Iterator[list[Path]]:
    """Yield the files in their order, as many together as it takes to reach `CHUNK` bytes."""
    batch: list[Path] = []
    held = 0
    for path, size in sizes.items():
        batch.append(path)
        held += size
        if held >= CHUNK:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def snapshot_files(folder: Path) -> list[Path]:
    """Return every file below a folder that its identity covers, sorted: all but hidden ones and linked folders.

    Raises:
        OSError: If the folder cannot be read.
    """
    return [path for path in visible_entries(folder) if path.is_file()]


def visible_entries(folder: Path) -> list[Path]:
    """Return everything below a folder but what is hidden, sorted; links are not followed.

    Hidden files are left out because tools and mounts drop them (``.DS_Store``, ``.cache``) without changing what is
    loaded.

    Raises:
        OSError: If the folder cannot be read.
    """
    entries: list[Path] = []
    below = [folder] if folder.is_dir() else []
    while below:
        with suppress(PermissionError), os.scandir(below.pop()) as found:
            for entry in found:
                if not entry.name.startswith("."):
                    entries.append(Path(entry.path))
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entries[-1])
    return sorted(entries)


def snapshot(folder: Path) -> dict[str, str]:
    """Return ``{relative POSIX path: SHA-256}`` of the `snapshot_files` of a folder.

    Raises:
        OSError: If the folder or a file in it cannot be read.
    """
    hashes = hash_files(snapshot_files(folder))
    return dict(sorted((path.relative_to(folder).as_posix(), digest) for path, digest in hashes.items()))


def snapshot_sha256(folder: Path) -> str:
    """Return a folder's identity: the canonical hash of its `snapshot`."""
    return sha256_json(snapshot(folder))
