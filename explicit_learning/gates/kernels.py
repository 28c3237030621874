"""Can this machine's GPUs run the kernels, and can Triton compile its own?

Whether a kernel computes the right thing, only the GPU can tell (`training.kernel_check`). That there is none for it at
all, or no compiler, is known before the launch.
"""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Fault
from explicit_learning.files.resources import TRITON_CONFIGURATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from explicit_learning.gates.nvml import Gpu

__all__ = ["check_kernels"]

CONTEXT = Context(gate="kernels", exit_code=ExitCode.HARDWARE)
# What Triton 3.7 looks for, in this order, after the variable CC (triton/runtime/build.py).
COMPILERS = ("gcc", "clang")


def check_kernels(
    gpus: Sequence[Gpu],
    *,
    strict: bool,
    baked: Mapping[str, Any] | None,
    environ: Mapping[str, str] = os.environ,
    headers: Path | None = None,
) -> list[Fault]:
    """Return why the kernels of a run on these GPUs could not be compiled or run.

    Args:
        gpus: The GPUs that the run uses.
        strict: Whether the plan's grade of determinism is ``strict``.
        baked: The image's record of itself; ``None`` outside an image, where kernels are what somebody installed.
        environ: Environment to look for a compiler in.
        headers: Folder of Python's C headers; by default that of this interpreter.
    """
    headers = Path(sysconfig.get_paths()["include"]) if headers is None else headers
    faults = [*_compiler_faults(environ, headers)]
    compiled = None if baked is None else baked["compute_capabilities"]
    for gpu in gpus:
        if compiled is not None and not any(_runs_on(each, gpu.compute_capability) for each in compiled):
            faults.append(
                CONTEXT.fault(
                    found=str(gpu),
                    expected=f"a GPU that kernels for compute capability {', '.join(compiled)} run on",
                    fix=f'build the image for it: make image COMPUTE_CAPABILITIES="{gpu.compute_capability}"',
                )
            )
        if strict and gpu.compute_capability not in (known := json.loads(TRITON_CONFIGURATIONS.read_bytes())):
            faults.append(
                CONTEXT.fault(
                    pointer="/determinism",
                    found=f"strict, on {gpu}",
                    expected=f"a GPU of compute capability {', '.join(known)}: {TRITON_CONFIGURATIONS.name} has one "
                    "configuration per kernel for these",
                    fix='freeze the plan with "determinism": "seeded", which lets Triton choose by timing, or choose '
                    "another GPU",
                )
            )
    return faults


def _runs_on(compiled: str, gpu: str) -> bool:
    """Whether machine code for one compute capability runs on a GPU of another: same major, same or higher minor.

    Source: CUDA C++ Programming Guide, "Binary Compatibility".
    """
    own, other = (tuple(map(int, text.split("."))) for text in (compiled, gpu))
    return own[0] == other[0] and own[1] <= other[1]


def _compiler_faults(environ: Mapping[str, str], headers: Path) -> Iterator[Fault]:
    """Triton compiles a small C module for each kernel that it launches."""
    names = [environ["CC"]] if environ.get("CC") else list(COMPILERS)
    if not any(shutil.which(name, path=environ.get("PATH")) for name in names):
        yield CONTEXT.fault(
            pointer="PATH" if len(names) > 1 else "CC",
            found=f"no {' or '.join(names)}",
            expected="a C compiler, with which Triton compiles the launcher of each kernel",
            fix="install gcc (apt-get install gcc libc6-dev), or run in the image, which has it",
            exit_code=ExitCode.ENVIRONMENT,
        )
    if not (headers / "Python.h").is_file():
        yield CONTEXT.fault(
            file=headers / "Python.h",
            found="no such file",
            expected="Python's C headers, with which Triton compiles the launcher of each kernel",
            fix="install them (apt-get install python3-dev), or run in the image, which has them",
            exit_code=ExitCode.ENVIRONMENT,
        )
