"""That the CPU lock is a part of the full one, and nothing else.

Results on a CPU are evidence about the GPU stack only while both run the same code. So for every supported interpreter
and architecture, whatever the CPU lock installs the full lock installs too: same version, same acceptable files.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.lock.parse import GATE, REFRESH, Lock, expected_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["environments", "subset_faults"]

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
    if part.head.subset_of_sha256 != full.sha256:
        yield _fault(part, "/subset_of/sha256", str(part.head.subset_of_sha256), f"{full.sha256} ({full.path.name})")
    for field in ("platform", "python", "cuda", "driver_minimum"):
        found, expected = part.head_fields[field], full.head_fields[field]
        if found != expected:
            yield _fault(part, f"/{field}", str(found), f"{expected}, as in {full.path.name}")


def _package_faults(full: Lock, part: Lock) -> Iterator[Fault]:
    hashes = {(package.name, package.version): package.hashes for package in full.packages}
    for package in part.packages:
        if package.name in full.head.compiled_from_source:
            yield _fault(part, package.name, "a package without wheels", f"it in {full.path.name} only")
        if hashes.get((package.name, package.version), package.hashes) != package.hashes:
            found, expected = "other acceptable files (hashes)", f"those of {full.path.name}"
            yield _fault(part, package.name, found, expected)
    for environment in environments(full.head.python):
        whole = expected_packages(full, environment)
        where = f"CPython {environment['python_version']}, {environment['platform_machine']}"
        for name, version in expected_packages(part, environment).items():
            if whole.get(name) != version:
                expected = f"{whole.get(name, 'nothing')}, as in {full.path.name} ({where})"
                yield _fault(part, name, version, expected)


def _fault(part: Lock, pointer: str, found: str, expected: str) -> Fault:
    return Fault(
        gate=GATE,
        file=str(part.path),
        pointer=pointer,
        found=found,
        expected=expected,
        fix=REFRESH,
        exit_code=ExitCode.ENVIRONMENT,
    )
