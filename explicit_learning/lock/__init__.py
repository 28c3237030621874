"""The environment locks: what a run's software is, by name, version and hash.

A lock is an ordinary requirements file with hashes, so that pip and uv install it without this program, and carries
what a requirements file cannot hold (base image, CUDA, driver) in a commented TOML block at its top. Its SHA-256 is the
software's identity in plans, images and provenance, so nothing is ever added to a lock by hand: `refresh` resolves it.
"""

from explicit_learning.lock.cuda import cuda_faults
from explicit_learning.lock.parse import (
    BaseImage,
    Lock,
    LockedPackage,
    LockHead,
    expected_packages,
    lock_sha256,
    normalise,
    read_lock,
)
from explicit_learning.lock.shipped import (
    CPU_LOCK,
    DOCS_LOCK,
    FULL_LOCK,
    IMAGE_LOCK,
    LINT_LOCK,
    TRACKERS_LOCK,
    VLLM_CPU_LOCK,
    find_lock,
    making_command,
    shipped_locks,
)
from explicit_learning.lock.subset import subset_faults

__all__ = [
    "CPU_LOCK",
    "DOCS_LOCK",
    "FULL_LOCK",
    "IMAGE_LOCK",
    "LINT_LOCK",
    "TRACKERS_LOCK",
    "VLLM_CPU_LOCK",
    "BaseImage",
    "Lock",
    "LockHead",
    "LockedPackage",
    "cuda_faults",
    "expected_packages",
    "find_lock",
    "lock_sha256",
    "making_command",
    "normalise",
    "read_lock",
    "shipped_locks",
    "subset_faults",
]
