"""Checks that the locks for CPUs are subsets of the full lock, but for what their heads name as additions.

Results on a CPU count for the GPU stack only while both run the same code. So for every supported interpreter and
architecture, each package of such a lock must be in the full lock too, with the same version and the same files. A
package that only CPUs have (vLLM's other build) is named in the head, and is in the full lock in no version.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from explicit_learning.lock.parse import CONTEXT, Lock, expected_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.errors import Fault

__all__ = ["environments", "subset_faults"]

BY_HAND = "correct the lock's head, which is a decision, then run `el lock refresh`"
MACHINES = ("x86_64", "aarch64")


def environments(python: tuple[str, ...]) -> list[dict[str, str]]:
    """Return marker variables for each Linux interpreter of the given versions on each architecture."""
    return [
        {
            "python_version": version,
            "python_full_version": f"{version}.0",
            "implementation_version": f"{version}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "platform_machine": machine,
        }
        for version, machine in product(python, MACHINES)
    ]


def subset_faults(full: Lock, part: Lock) -> list[Fault]:
    """Return every way in which ``part`` is not the subset of ``full`` that its head claims.

    Raises:
        Refusal: If a head breaks its schema, or a lock contradicts itself.
    """
    return list(dict.fromkeys((*_head_faults(full, part), *_package_faults(full, part))))


def _head_faults(full: Lock, part: Lock) -> Iterator[Fault]:
    at = CONTEXT.at(part.path)
    if part.head.subset_of_sha256 != full.sha256:
        found, expected = str(part.head.subset_of_sha256), f"{full.sha256} ({full.path.name})"
        yield at.fault(pointer="/subset_of/sha256", found=found, expected=expected)
    for field in ("platform", "python", "cuda", "driver_minimum"):
        found, right = part.head_fields[field], full.head_fields[field]
        if found != right:
            yield at.fault(pointer=f"/{field}", found=str(found), expected=f"{right}, as in {full.path.name}")


def _package_faults(full: Lock, part: Lock) -> Iterator[Fault]:
    at = CONTEXT.at(part.path)
    hashes = {(package.name, package.version): package.hashes for package in full.packages}
    additions = set(part.head.additions)
    for name in sorted(additions):
        if name not in {package.name for package in part.packages}:
            found, expected = f"{name}, which the lock does not have", "names of packages in this lock"
            yield at.fault(pointer="/additions", found=found, expected=expected, fix=BY_HAND)
        if name in {package.name for package in full.packages}:
            found, expected = f"{name}, which {full.path.name} has, too", f"what {full.path.name} lacks"
            yield at.fault(pointer="/additions", found=found, expected=expected, fix=BY_HAND)
    for package in part.packages:
        if package.name in full.head.compiled_from_source:
            expected = f"this package in {full.path.name} only"
            yield at.fault(pointer=package.name, found="a package without wheels", expected=expected)
        if hashes.get((package.name, package.version), package.hashes) != package.hashes:
            found, expected = "other acceptable files (hashes)", f"those of {full.path.name}"
            yield at.fault(pointer=package.name, found=found, expected=expected)
    for environment in environments(full.head.python):
        whole = expected_packages(full, environment)
        where = f"CPython {environment['python_version']}, {environment['platform_machine']}"
        for name, version in expected_packages(part, environment).items():
            if whole.get(name) != version and name not in additions:
                expected = f"{whole.get(name, 'nothing')}, as in {full.path.name} ({where})"
                yield at.fault(pointer=name, found=version, expected=expected)
