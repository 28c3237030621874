"""The deep half of the environment gate: every installed file against the hash that its package recorded.

This finds what was edited in place. Two kinds of packages break the rule by themselves, and are told from an edit:

- Several packages install different files under one path. Whichever was installed last is there, so either is right.
- A wheel whose own record is wrong. The right hashes are listed here, as they are in the wheels that the lock names.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os.path
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.files.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.errors import Context, Fault
    from explicit_learning.lock.installed import Installed

__all__ = ["WRONG_RECORDS", "file_faults"]

THREADS = 8
# (package, version, file) → its hash in the wheel, where the wheel records another one.
WRONG_RECORDS = {
    ("pynvvideocodec", "2.0.4", f"PyNvVideoCodec/PyNvVideoCodec_{name}-x86_64-linux-gnu.so"): f"sha256={digest}"
    for name, digest in {
        "121.cpython-311": "DPcXlo5iFn_H6lfp2QsNLmkjOpQZMPq2lgeuZkb9-FE",
        "130.cpython-311": "qf_vGkfr5Ek3XHvvUjwn7alTLACGhxRnK8bWg5QO_5U",
        "121.cpython-312": "L7hfi80zwT4kDvKoxid_TVoCYLYp7PmiQqBPFAP1gqg",
        "130.cpython-312": "FPEqeXfC9oH7AWk-QUNDCL-1zw4sMe0sKdEXYzfIZGI",
    }.items()
}


def file_faults(installed: Sequence[Installed], context: Context) -> Iterator[Fault]:
    """Yield a fault for each package without a readable record, and each file that no package recorded as it is.

    Args:
        installed: What to look at.
        context: Gate, lock and advice of the faults.
    """
    claims: dict[Path, dict[str, str]] = {}
    for package in installed:
        try:
            for path, recorded in list(_records(package)):
                claims.setdefault(path, {})[package.name] = recorded
        except (OSError, csv.Error, ValueError) as error:
            found, expected = f"{package.metadata.name} has no readable RECORD ({error})", "a list of files with hashes"
            yield context.fault(pointer=package.name, found=found, expected=expected)
    with progress("hashing installed files", len(claims), "files") as advance, ThreadPoolExecutor(THREADS) as pool:

        def state(path: Path) -> str:
            result = _state(path, algorithm=next(iter(claims[path].values())).partition("=")[0])
            advance(1)
            return result

        for (path, claimed), found in zip(claims.items(), pool.map(state, claims), strict=True):
            if found not in claimed.values():
                expected = " or ".join(f"{digest} ({name})" for name, digest in claimed.items())
                yield context.fault(pointer=next(iter(claimed)), found=f"{path}: {found}", expected=expected)


def _records(package: Installed) -> Iterator[tuple[Path, str]]:
    """Yield ``(file, "ALGORITHM=DIGEST")`` for all files with a recorded hash (PEP 376, PEP 427).

    Compiled bytecode is left out: some wheels record theirs, and compiling an environment replaces it.
    """
    with (package.metadata / "RECORD").open(encoding="utf-8", newline="") as stream:
        for name, recorded, _size in csv.reader(stream):
            if recorded and not name.endswith(".pyc"):
                path = Path(os.path.normpath(package.metadata.parent / name))
                yield path, WRONG_RECORDS.get((package.name, package.version, name), recorded)


def _state(path: Path, *, algorithm: str) -> str:
    """Return a file's hash as RECORD writes it (algorithm, ``=``, URL-safe base64 unpadded), or why it has none."""
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, algorithm).digest()
    except FileNotFoundError:
        return "missing"
    except (OSError, ValueError) as error:
        return f"cannot be hashed: {error}"
    return f"{algorithm}={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
