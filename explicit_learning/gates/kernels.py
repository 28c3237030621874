"""Are there kernels for this machine's GPUs?

Whether a kernel computes the right thing, only the GPU can tell (`training.kernel_check`). That there is none for it at
all is known before the launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.resources import TRITON_CONFIGURATIONS
from explicit_learning.lock.triton_configurations import read_triton_configurations

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from explicit_learning.errors import Fault
    from explicit_learning.gates.nvml import Gpu

__all__ = ["check_kernels"]

CONTEXT = Context(gate="kernels", exit_code=ExitCode.HARDWARE)


def check_kernels(gpus: Sequence[Gpu], *, strict: bool, baked: Mapping[str, Any] | None) -> list[Fault]:
    """Return which of these GPUs there are no kernels for, and what is wrong with the file of pinned configurations.

    Args:
        gpus: The GPUs that the run uses.
        strict: Whether the plan's grade of determinism is ``strict``.
        baked: The image's record of itself; ``None`` outside an image, where kernels are what somebody installed.
    """
    faults: list[Fault] = []
    pinned: Collection[str] | None = None
    if strict:
        try:
            pinned = read_triton_configurations()
        except Refusal as refusal:
            faults += refusal.faults
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
        if pinned is not None and gpu.compute_capability not in pinned:
            faults.append(
                CONTEXT.fault(
                    pointer="/determinism",
                    found=f"strict, on {gpu}",
                    expected=f"a GPU of compute capability {', '.join(pinned)}: {TRITON_CONFIGURATIONS.name} has one "
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
