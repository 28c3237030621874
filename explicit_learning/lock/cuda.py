"""Checks that a lock has one CUDA version.

The compiler, its headers and the runtime come in packages of their own, and only the runtime's version is required by
torch. A resolver takes the newest of the others, and then a header refuses the compiler, or the compiler the code that
its own parts generate: on a user's GPU, when a library compiles its first kernel.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from explicit_learning.lock.parse import CONTEXT, Lock

if TYPE_CHECKING:
    from explicit_learning.errors import Fault

__all__ = ["cuda_faults"]

# Packages whose version is that of the CUDA release they belong to. (Libraries such as cuBLAS count on their own.)
VERSIONED_AS_CUDA = re.compile(r"nvidia-(cuda-.+|nvvm|nvjitlink|nvtx)")
# These read machine code alone, of any version before their own, and CUTLASS requires a newer one than torch has.
READERS = frozenset({"nvidia-cuda-nvdisasm", "nvidia-cuda-cuobjdump"})


def cuda_faults(lock: Lock) -> list[Fault]:
    """Return a fault for each part of CUDA that is not of the version in the lock's head, as far as major and minor.

    Raises:
        Refusal: If the head breaks its schema.
    """
    cuda = ".".join(lock.head.cuda.split(".")[:2])
    return [
        CONTEXT.fault(
            file=lock.path,
            pointer=package.name,
            found=f"{package.name} {package.version}",
            expected=f"{package.name} of CUDA {cuda}, as in the lock's head: its parts must fit each other",
            fix=f"limit {package.name} in requirements/environment.in, then run `el lock refresh`",
        )
        for package in lock.packages
        if VERSIONED_AS_CUDA.fullmatch(package.name)
        and package.name not in READERS
        and ".".join(package.version.split(".")[:2]) != cuda
    ]
