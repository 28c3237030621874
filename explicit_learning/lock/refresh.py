"""Resolving the locks again, with uv.

The order matters: the full lock first; the CPU lock under its versions, so that it is a subset; the lint lock under the
CPU lock's, because mypy reads both, and so is that of the image's tools. Everything happens in a temporary folder, and
the results replace the old locks only once all are there and fit each other. A head holds decisions (a
base image, a driver), not results: it is kept as it is, except for the parent's hash.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.atomic import write_text
from explicit_learning.lock.cuda import cuda_faults
from explicit_learning.lock.parse import (
    CONTEXT,
    HEAD_BEGIN,
    HEAD_END,
    LockedPackage,
    lock_sha256,
    read_lock,
    read_packages,
)
from explicit_learning.lock.subset import subset_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Change", "Refreshed", "refresh"]

# The oldest Python supported; `--universal` then resolves for every later one as well.
COMPILE = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url", "--no-header")
STEPS = (
    ("environment.lock", "requirements/environment.in", None),
    ("environment.cpu.lock", "requirements/environment.cpu.in", "environment.lock"),
    ("lint.lock", "requirements/lint.in", "environment.cpu.lock"),
    ("image.lock", "requirements/image.in", "environment.cpu.lock"),
)
PARENT = re.compile(r'^(# sha256 = ")[0-9a-f]{64}(")$', re.MULTILINE)
LAST_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference between a lock and its successor.

    Attributes:
        lock: File name of the lock.
        package: Normalised name.
        before: Versions before, ``""`` for none.
        after: Versions after, ``""`` for none; equal to ``before`` where only files or markers changed.
    """

    lock: str
    package: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """What a refresh did.

    Attributes:
        changes: Differences in packages, by lock and package.
        rewritten: File name and new SHA-256 of each lock whose bytes changed, if only by a comment: its identity did.
    """

    changes: tuple[Change, ...]
    rewritten: dict[str, str]


def refresh(root: Path, *, upgrade: Sequence[str] = (), upgrade_all: bool = False) -> Refreshed:
    """Resolve all locks again and replace those that changed.

    Args:
        root: Checkout that holds the locks and ``requirements/``.
        upgrade: Names of packages to move to the newest version that fits.
        upgrade_all: Move every package. By default a locked version stays as long as it fits the requirements.

    Raises:
        Refusal: If uv finds no solution (65) or cannot reach an index (74), or the results do not fit each other (78).
        OSError: If a lock cannot be written.
    """
    options = ["--upgrade"] if upgrade_all else [f"--upgrade-package={name}" for name in upgrade]
    with tempfile.TemporaryDirectory(prefix="explicit-lock-") as name:
        work = Path(name)
        shutil.copytree(root / "requirements", work / "requirements")
        for lock, *_ in STEPS:
            shutil.copyfile(root / lock, work / lock)
        for lock, declared, constraint in STEPS:
            head = _head(root / lock)
            constraints = ["--constraint", constraint] if constraint else []
            _compile(work, [declared, *constraints, *options, "--output-file", lock])
            if constraint and head:
                head = PARENT.sub(rf"\g<1>{lock_sha256(work / constraint)}\g<2>", head)
            write_text(work / lock, head + (work / lock).read_text("utf-8"))
        full, part = (read_lock(work / lock) for lock, *_ in STEPS[:2])
        faults = [*subset_faults(full, part), *cuda_faults(full)]
        if faults:
            raise Refusal(faults)
        changes = tuple(change for lock, *_ in STEPS for change in _changes(lock, root / lock, work / lock))
        rewritten = {
            lock: lock_sha256(work / lock)
            for lock, *_ in STEPS
            if (work / lock).read_bytes() != (root / lock).read_bytes()
        }
        for lock in rewritten:
            write_text(root / lock, (work / lock).read_text("utf-8"))
    return Refreshed(changes=changes, rewritten=rewritten)


def _head(lock: Path) -> str:
    text = lock.read_text("utf-8")
    if not text.startswith(HEAD_BEGIN):
        return ""
    return text[: text.index(f"\n{HEAD_END}\n") + len(f"\n{HEAD_END}\n")] + "\n"


def _compile(work: Path, arguments: list[str]) -> None:
    import uv

    command = [uv.find_uv_bin(), "pip", "compile", "--quiet", *COMPILE, *arguments]
    done = subprocess.run(command, cwd=work, capture_output=True, encoding="utf-8", check=False)  # noqa: S603 - no shell
    if done.returncode == 0:
        return
    no_solution = "No solution found" in done.stderr and "network was disabled" not in done.stderr
    raise CONTEXT.refusal(
        file=arguments[0],
        found="\n".join(done.stderr.strip().splitlines()[-LAST_LINES:]) or f"uv ended with {done.returncode}",
        expected="a resolution of all requirements",
        fix="change the requirements that contradict each other"
        if no_solution
        else "check the network and uv's index settings, then run this again; the locks are as they were",
        exit_code=ExitCode.CONTRACT if no_solution else ExitCode.IO,
    )


def _changes(lock: str, old: Path, new: Path) -> list[Change]:
    before, after = _by_name(old), _by_name(new)
    return [
        Change(lock=lock, package=name, before=_versions(before.get(name)), after=_versions(after.get(name)))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _by_name(lock: Path) -> dict[str, set[LockedPackage]]:
    packages: dict[str, set[LockedPackage]] = {}
    for package in read_packages(lock):
        packages.setdefault(package.name, set()).add(package)
    return packages


def _versions(packages: set[LockedPackage] | None) -> str:
    return ", ".join(sorted({package.version for package in packages or ()}))
