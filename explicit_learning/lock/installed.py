"""What is installed, and which lock it is nearest to.

Read are the names of the ``*.dist-info`` folders on the import search path, which hold project and version: no metadata
file is opened, so this takes milliseconds.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.lock.parse import expected_packages, normalise, read_lock
from explicit_learning.lock.shipped import FULL_LOCK, shipped_locks

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Installed", "installed_packages", "lock_of_new_plan", "nearest_lock"]

# Ours is the program being checked, whatever its version; pip and the like install, and are never imported by a run.
EXEMPT = frozenset({"explicit-learning", "pip"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One installed distribution.

    Attributes:
        name: Normalised name.
        version: Version in its folder's name; ``""`` if there is none.
        metadata: Its ``*.dist-info`` or ``*.egg-info``.
    """

    name: str
    version: str
    metadata: Path


def installed_packages(search_path: Iterable[str] | None = None) -> list[Installed]:
    """Return every distribution on the import search path (default: `sys.path`), in the order Python finds them.

    This program and installers are left out.
    """
    found: list[Installed] = []
    for folder in dict.fromkeys(os.path.realpath(entry or ".") for entry in (search_path or sys.path)):
        try:
            entries = sorted(os.listdir(folder))  # noqa: PTH208 - names only, and half the time of Path.iterdir
        except OSError:
            continue  # Python itself skips entries that are missing, unreadable or archives without metadata
        for entry in entries:
            stem, _, kind = entry.rpartition(".")
            if kind in {"dist-info", "egg-info"}:
                name, _, version = stem.partition("-")
                if kind == "egg-info":  # NAME-VERSION-pyX.Y
                    version = version.partition("-py")[0]
                found.append(Installed(name=normalise(name), version=version, metadata=Path(folder, entry)))
    return [package for package in found if package.name not in EXEMPT]


def nearest_lock() -> Path:
    """Return the shipped lock that this environment agrees with, or else the one it differs from least.

    The full lock wins a tie.

    Raises:
        Refusal: If a lock cannot be read or contradicts itself.
    """
    installed = {(package.name, package.version) for package in installed_packages()}
    return min(
        shipped_locks().values(),
        key=lambda path: len(installed ^ set(expected_packages(read_lock(path)).items())),
    )


def lock_of_new_plan(accelerator: str) -> Path:
    """Return the lock that a plan is frozen against: the full one for GPUs, on a CPU the nearest.

    Args:
        accelerator: ``cpu`` or ``cuda``.

    Raises:
        Refusal: If a lock cannot be read or contradicts itself.
    """
    return FULL_LOCK if accelerator == "cuda" else nearest_lock()
