"""Checks that the locks satisfy the requirements that a person declares in ``requirements/*.in``.

If someone adds a requirement and does not resolve again, the program works on their machine only. So each lock must
exist and satisfy each of its declared requirements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.files.strict_json import read_bytes
from explicit_learning.lock.parse import CONTEXT, normalise, read_packages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from packaging.requirements import Requirement

    from explicit_learning.errors import Fault

__all__ = ["declared_requirements", "undeclared_faults"]


def declared_requirements(path: Path) -> Iterator[tuple[str, Requirement]]:
    """Yield ``(FILE:LINE, requirement)`` of a requirements file and of those it includes with ``-r``.

    Raises:
        Refusal: If a file cannot be read.
        packaging.requirements.InvalidRequirement: If a line is not a requirement.
    """
    from packaging.requirements import Requirement

    for number, line in enumerate(read_bytes(path, gate=CONTEXT.gate).decode().splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if text.startswith("-r "):
            yield from declared_requirements(path.parent / text.removeprefix("-r ").strip())
        elif text:
            yield f"{path}:{number}", Requirement(text)


def undeclared_faults(lock: Path, declared: Path) -> list[Fault]:
    """Return a fault for every declared requirement that a lock does not meet.

    Args:
        lock: The lock.
        declared: The requirements file it was resolved from.

    Raises:
        Refusal: If a file cannot be read.
        packaging.requirements.InvalidRequirement: If a declared line is not a requirement.
    """
    versions: dict[str, list[str]] = {}
    for package in read_packages(lock):
        versions.setdefault(package.name, []).append(package.version)
    faults = []
    for where, requirement in declared_requirements(declared):
        locked = versions.get(normalise(requirement.name), [])
        if not locked or not all(requirement.specifier.contains(version, prereleases=True) for version in locked):
            found = f"{requirement.name} {' and '.join(locked) or 'not'} in {lock.name}"
            faults.append(CONTEXT.fault(file=where, found=found, expected=str(requirement)))
    return faults
