"""Is there what Triton compiles with?

Triton compiles the launcher of each kernel with a C compiler and Python's headers when the kernel first runs. The image
has both. A checkout on a GPU host may lack them, and transformers and flash-linear-attention tell that in ways that do
not name the cause. (nvcc is not needed: nothing that a run calls compiles with it.)
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, found_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.errors import Fault

__all__ = ["check_compiler"]

POINTER = "/hardware/accelerator"
CONTEXT = Context(
    gate="compiler",
    fix="apt-get install gcc libc6-dev, or use the image, which has what is needed",
    exit_code=ExitCode.ENVIRONMENT,
)
# In the order in which Triton looks for them, where CC is not set.
COMPILERS = ("gcc", "clang")


def check_compiler(environ: Mapping[str, str], *, file: str | None = None, include: Path | None = None) -> list[Fault]:
    """Return what of a C compiler and Python's headers is missing for a run on GPUs.

    Args:
        environ: The environment that ranks get ``CC`` and ``PATH`` from.
        file: The plan, for the faults.
        include: The folder of Python's headers; by default this interpreter's.
    """
    named = environ.get("CC")
    names = COMPILERS if named is None else (named,)
    faults = []
    if not any(shutil.which(name, path=environ.get("PATH")) for name in names):
        expected = "a C compiler: Triton compiles the launcher of each kernel with it"
        if named is None:
            found = f"no {' and no '.join(COMPILERS)} on PATH"
            faults.append(CONTEXT.fault(file=file, pointer=POINTER, found=found, expected=expected))
        else:
            found, fix = f"CC is {found_text(named)}: no such program", "unset CC, or set it to a C compiler"
            faults.append(CONTEXT.fault(file=file, pointer=POINTER, found=found, expected=expected, fix=fix))
    headers = include or Path(sysconfig.get_paths(scheme="posix_prefix")["include"])
    if not (headers / "Python.h").is_file():
        found = f"{headers / 'Python.h'} does not exist"
        expected = "Python's headers: Triton compiles the launcher of each kernel with them"
        fix = f"apt-get install {headers.name}-dev, or use the image, which has what is needed"
        faults.append(CONTEXT.fault(file=file, pointer=POINTER, found=found, expected=expected, fix=fix))
    return faults
