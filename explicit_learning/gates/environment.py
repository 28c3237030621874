"""The environment gate: what is installed, against the lock.

A run cannot be reproduced with another version of a kernel or of TRL, so this gate reads what Python would import: the
``*.dist-info`` folders on the whole search path, user site and ``PYTHONPATH`` included. Their *names* hold project and
version, so that no metadata file is read and the gate takes a few milliseconds. A module in another folder that takes
the place of a locked one is found by its name, too. What trackers need may be there or not, in the version
that ``trackers.lock`` names and in no other. The deep check reads every installed
file and compares it with the hash that its installer recorded, which finds what was edited in place.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Fault
from explicit_learning.gates.installed_files import file_faults
from explicit_learning.lock import TRACKERS_LOCK, Lock, expected_packages, making_command, read_lock
from explicit_learning.lock.installed import installed_packages
from explicit_learning.lock.shadows import environment_folders, shadows, start_up_modules
from explicit_learning.rundir.launches import LockIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from explicit_learning.lock.installed import Installed

__all__ = ["check_environment", "lock_identity"]

LISTED = 12
CONTEXT = Context(gate="environment", exit_code=ExitCode.ENVIRONMENT)


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
    installed, right = installed_packages(search_path), _right_environment(lock)
    context = replace(CONTEXT, file=str(lock.path), fix=right)
    faults = [*_interpreter_faults(lock, context), *_package_faults(lock, installed, context)]
    faults += _origin_faults(context, sys.path if search_path is None else search_path)
    if deep:
        fix = f"delete this environment and make it again: something changed its files; {right}"
        faults += file_faults(installed, replace(context, fix=fix))
    return faults


def lock_identity(lock_path: Path) -> LockIdentity:
    """Return a lock as launches record it, with the versions of what its head names as additions.

    Raises:
        Refusal: If the lock cannot be read, its head breaks its schema, or it contradicts itself.
    """
    lock = read_lock(lock_path)
    versions = expected_packages(lock)
    additions = {name: versions[name] for name in lock.head.additions if name in versions}
    return LockIdentity(name=lock_path.name, sha256=lock.sha256, additions=additions)


def _right_environment(lock: Lock) -> str:
    """Return which environment to use instead: no command makes that of the full lock."""
    if "subset_of" in lock.head_fields:
        return f"use the environment that `{making_command(lock.path)}` makes, or the image"
    return f"use the image, or an environment in which {lock.path.name} is installed"


def _interpreter_faults(lock: Lock, context: Context) -> Iterator[Fault]:
    running, supported = ".".join(platform.python_version_tuple()[:2]), lock.head_fields.get("python", [])
    if running not in supported:
        yield context.fault(
            pointer="python",
            found=running,
            expected=f"one of {', '.join(supported)}",
            fix=f"install one of these, then {context.fix}",
        )


def _package_faults(lock: Lock, installed: Sequence[Installed], context: Context) -> Iterator[Fault]:
    expected = expected_packages(lock)
    trackers = expected_packages(read_lock(TRACKERS_LOCK))
    optional = {name: trackers[name] for name in trackers.keys() - expected.keys()}
    versions: dict[str, list[Installed]] = {}
    for package in installed:
        versions.setdefault(package.name, []).append(package)

    missing = {name: f"{name} {version}" for name, version in sorted(expected.items()) if name not in versions}
    extra = {
        name: f"{name} {found[0].version} ({found[0].metadata.parent})"
        for name, found in sorted(versions.items())
        if name not in expected and name not in optional
    }
    other = {
        name: (" and ".join(dict.fromkeys(package.version for package in versions[name])), version)
        for name, version in sorted((expected | optional).items())
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
            fix = f"uninstall it (or unset PYTHONPATH, set PYTHONNOUSERSITE=1), or {context.fix}"
            yield context.fault(pointer=name, found=text, expected=f"no {name}: the lock does not name it", fix=fix)


def _origin_faults(context: Context, search_path: Sequence[str]) -> Iterator[Fault]:
    fix = "unset PYTHONPATH and set PYTHONNOUSERSITE=1, or remove or rename what stands there"
    context = replace(context, fix=fix)
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
