"""The environment gate: what is installed, against the lock.

A run cannot be reproduced with another version of a kernel or of TRL, so this gate reads what Python would import: the
``*.dist-info`` folders on the whole search path, user site and ``PYTHONPATH`` included. Their *names* hold project and
version, so that no metadata file is read and the gate takes a few milliseconds. A module in another folder that takes
the place of a locked one is found by its name, too. The deep check reads every installed
file and compares it with the hash that its installer recorded, which finds what was edited in place.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Fault
from explicit_learning.files.progress import progress
from explicit_learning.lock import Lock, expected_packages, read_lock
from explicit_learning.lock.installed import Installed, installed_packages
from explicit_learning.lock.shadows import environment_folders, shadows, start_up_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["check_environment"]

LISTED = 12
THREADS = 8
MAKE = "use the environment that `make -s env` makes, or the image"
CONTEXT = Context(gate="environment", fix=MAKE, exit_code=ExitCode.ENVIRONMENT)


def check_environment(lock_path: Path, *, deep: bool = False, search_path: Sequence[str] | None = None) -> list[Fault]:
    """Return every difference between what is installed and a lock.

    Args:
        lock_path: The lock.
        deep: Also hash every installed file and compare it with its package's record.
        search_path: Import search path to look at; default: this interpreter's own.

    Returns:
        Faults with exit code 78, sorted by kind and name.

    Raises:
        Refusal: If the lock cannot be read or contradicts itself.
    """
    lock = read_lock(lock_path)
    installed = installed_packages(search_path)
    faults = [*_interpreter_faults(lock), *_package_faults(lock, installed)]
    faults += _origin_faults(lock, sys.path if search_path is None else search_path)
    if deep:
        faults += _file_faults(lock, installed)
    return faults


def _interpreter_faults(lock: Lock) -> Iterator[Fault]:
    running, supported = ".".join(platform.python_version_tuple()[:2]), lock.head_fields.get("python", [])
    if running not in supported:
        yield CONTEXT.fault(
            file=lock.path,
            pointer="python",
            found=running,
            expected=f"one of {', '.join(supported)}",
            fix=f"install one of these, then {MAKE}",
        )


def _package_faults(lock: Lock, installed: Sequence[Installed]) -> Iterator[Fault]:
    context, expected = CONTEXT.at(lock.path), expected_packages(lock)
    versions: dict[str, list[Installed]] = {}
    for package in installed:
        versions.setdefault(package.name, []).append(package)

    missing = {name: f"{name} {version}" for name, version in sorted(expected.items()) if name not in versions}
    extra = {
        name: f"{name} {found[0].version} ({found[0].metadata.parent})"
        for name, found in sorted(versions.items())
        if name not in expected
    }
    other = {
        name: (" and ".join(dict.fromkeys(package.version for package in versions[name])), version)
        for name, version in sorted(expected.items())
        if name in versions and not all(_same_version(package.version, version) for package in versions[name])
    }
    if len(missing) > LISTED:
        found = f"not installed: {_some(missing)}"
        yield context.fault(pointer="", found=found, expected=f"{len(missing)} more packages")
    else:
        for name, text in missing.items():
            yield context.fault(pointer=name, found=f"{name} is not installed", expected=text)
    for name, (found, version) in other.items():
        yield context.fault(pointer=name, found=f"{name} {found}", expected=f"{name} {version}")
    if len(extra) > LISTED:
        found = f"not in the lock: {_some(extra)}"
        yield context.fault(pointer="", found=found, expected="only packages that the lock names")
    else:
        for name, text in extra.items():
            fix = f"uninstall it (or unset PYTHONPATH, set PYTHONNOUSERSITE=1), or {MAKE}"
            yield context.fault(pointer=name, found=text, expected=f"no {name}: the lock does not name it", fix=fix)


def _origin_faults(lock: Lock, search_path: Sequence[str]) -> Iterator[Fault]:
    fix = "unset PYTHONPATH and set PYTHONNOUSERSITE=1, or remove or rename what stands there"
    context = replace(CONTEXT, file=str(lock.path), fix=fix)
    from_elsewhere = dict(shadows(search_path, environment_folders()))
    if len(from_elsewhere) > LISTED:
        found = f"imported from elsewhere: {_some(f'{name} ({path})' for name, path in from_elsewhere.items())}"
        yield context.fault(pointer="", found=found, expected="modules of the environment or of Python's library")
    else:
        for name, path in from_elsewhere.items():
            expected = f"the {name} of the environment or of Python's library"
            yield context.fault(pointer=name, found=f"{name} is imported from {path}", expected=expected)
    for name, path in start_up_modules():
        found, expected = f"Python ran {path} when it started", f"no {name} outside Python's library"
        yield context.fault(pointer=name, found=found, expected=expected)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return f"{', '.join(listed[:LISTED])} and {len(listed) - LISTED} more"


def _same_version(found: str, expected: str) -> bool:
    if found == expected:
        return True
    from packaging.version import InvalidVersion, Version

    try:
        # A folder's name has "_" where a local version has "-", and may lack the normal form's zeros.
        return Version(found) == Version(expected)
    except InvalidVersion:
        return False


def _file_faults(lock: Lock, installed: Sequence[Installed]) -> Iterator[Fault]:
    fix = f"delete this environment and make it again: something changed its files; {MAKE}"
    context = replace(CONTEXT, file=str(lock.path), fix=fix)
    records: list[tuple[Installed, Path, str]] = []
    for package in installed:
        try:
            records += _records(package)
        except (OSError, csv.Error, ValueError) as error:
            found, expected = f"{package.metadata.name} has no readable RECORD ({error})", "a list of files with hashes"
            yield context.fault(pointer=package.name, found=found, expected=expected)
    with progress("hashing installed files", len(records), "files") as advance, ThreadPoolExecutor(THREADS) as pool:

        def state(record: tuple[Installed, Path, str]) -> str:
            result = _state(record[1], record[2])
            advance(1)
            return result

        for (package, path, recorded), found in zip(records, pool.map(state, records), strict=True):
            if found != recorded:
                yield context.fault(pointer=package.name, found=f"{path}: {found}", expected=recorded)


def _records(package: Installed) -> Iterator[tuple[Installed, Path, str]]:
    """Yield ``(package, file, "ALGORITHM=DIGEST")`` for all files with a recorded hash (PEP 376, PEP 427).

    Compiled bytecode is left out: some wheels record theirs, and compiling an environment replaces it.
    """
    with (package.metadata / "RECORD").open(encoding="utf-8", newline="") as stream:
        for path, recorded, _size in csv.reader(stream):
            if recorded and not path.endswith(".pyc"):
                yield package, package.metadata.parent / path, recorded


def _state(path: Path, recorded: str) -> str:
    """Return a file's hash as RECORD writes it (algorithm, ``=``, URL-safe base64 unpadded), or why it has none."""
    algorithm = recorded.partition("=")[0]
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, algorithm).digest()
    except FileNotFoundError:
        return "missing"
    except (OSError, ValueError) as error:
        return f"cannot be hashed: {error}"
    return f"{algorithm}={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
