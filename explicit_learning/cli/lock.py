"""``el lock check`` and ``el lock refresh``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import ROOT
from explicit_learning.gates.environment import check_environment
from explicit_learning.lock import (
    CPU_LOCK,
    DOCS_LOCK,
    FULL_LOCK,
    IMAGE_LOCK,
    LINT_LOCK,
    TRACKERS_LOCK,
    VLLM_CPU_LOCK,
    cuda_faults,
    lock_sha256,
    read_lock,
    subset_faults,
)
from explicit_learning.lock.installed import nearest_lock

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="what is installed against the lock, and the locks against each other")
    check.add_argument("--lock", type=given_path, help="the lock to compare with (default: the one that fits best)")
    check.add_argument("--deep", action="store_true", help="also hash every installed file")
    add_json_argument(check)
    refresh = actions.add_parser("refresh", help="resolve the locks again from requirements/ (needs a package index)")
    refresh.add_argument("--upgrade", action="store_true", help="move every package to the newest version that fits")
    refresh.add_argument(
        "--upgrade-package", metavar="NAME", action="append", default=[], help="move this package (repeatable)"
    )


def run(args: argparse.Namespace) -> ExitCode:
    """Run ``check`` or ``refresh``."""
    return _check(args) if args.action == "check" else _refresh(args)


def _check(args: argparse.Namespace) -> ExitCode:
    from explicit_learning.lock.declared import undeclared_faults

    path, full = args.lock or nearest_lock(), read_lock(FULL_LOCK)
    faults = [
        *check_environment(path, deep=args.deep),
        *subset_faults(full, read_lock(CPU_LOCK)),
        *subset_faults(full, read_lock(VLLM_CPU_LOCK)),
        *subset_faults(full, read_lock(TRACKERS_LOCK)),
        *cuda_faults(full),
        *undeclared_faults(FULL_LOCK, ROOT / "requirements" / "environment.in"),
        *undeclared_faults(CPU_LOCK, ROOT / "requirements" / "environment.cpu.in"),
        *undeclared_faults(VLLM_CPU_LOCK, ROOT / "requirements" / "environment.vllm-cpu.in"),
        *undeclared_faults(TRACKERS_LOCK, ROOT / "requirements" / "trackers.in"),
        *undeclared_faults(LINT_LOCK, ROOT / "requirements" / "lint.in"),
        *undeclared_faults(IMAGE_LOCK, ROOT / "requirements" / "image.in"),
        *undeclared_faults(DOCS_LOCK, ROOT / "requirements" / "docs.in"),
    ]
    sha256 = lock_sha256(path)
    if not faults and not args.json:
        print(f"the environment is {path.name}, {sha256}", file=sys.stderr)
    return answer(faults, as_json=args.json, lock=path.name, environment_lock_sha256=sha256)


def _refresh(args: argparse.Namespace) -> ExitCode:
    from explicit_learning.lock.refresh import refresh

    done = refresh(ROOT, upgrade=args.upgrade_package, upgrade_all=args.upgrade)
    for change in done.changes:
        after = "other files or markers" if change.before == change.after else change.after or "removed"
        print(f"{change.lock}: {change.package} {change.before or 'new'} -> {after}")
    for name, sha256 in done.rewritten.items():
        print(f"{name} is now {sha256}")
    if not done.rewritten:
        print("the locks are as they were")
    return ExitCode.DONE
