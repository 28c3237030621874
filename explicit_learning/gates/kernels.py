"""Are there kernels for this machine's GPUs?

Whether a kernel computes the right thing, only the GPU can tell (`training.kernel_check`). That there is none for it at
all is known before the launch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.resources import TRITON_CONFIGURATIONS
from explicit_learning.gates.image import baked_identity
from explicit_learning.gates.nvml import NvmlUnavailable
from explicit_learning.gates.visible import visible_devices
from explicit_learning.lock.triton_configurations import read_triton_configurations

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from explicit_learning.errors import Fault
    from explicit_learning.gates.nvml import Gpu, Inventory

__all__ = ["COMPILABLE", "check_kernels", "check_visible_kernels"]

CONTEXT = Context(gate="kernels", exit_code=ExitCode.HARDWARE)
# The compute capabilities that an image can be built for (deploy/image/compiler.sh refuses others).
COMPILABLE = ("8.0", "9.0", "10.0", "12.0")


def check_visible_kernels(inventory: Inventory | NvmlUnavailable, *, ranks: int, strict: bool) -> list[Fault]:
    """Return which of the GPUs that ranks would get here there are no kernels for.

    That there are no GPUs, and what is wrong with the image's record of itself, is told by other gates.

    Args:
        inventory: The GPUs that NVML reports.
        ranks: The ranks on this machine.
        strict: Whether the plan's grade of determinism is ``strict``.
    """
    if isinstance(inventory, NvmlUnavailable):
        return []
    try:
        baked = baked_identity()
    except Refusal:
        return []
    return check_kernels(visible_devices(inventory.gpus, os.environ).gpus[:ranks], strict=strict, baked=baked)


def check_kernels(gpus: Sequence[Gpu], *, strict: bool, baked: Mapping[str, Any] | None) -> list[Fault]:
    """Return which of these GPUs there are no kernels for, and what is wrong with the file of pinned configurations.

    GPUs that cannot be used, or whose compute capability is not known, are left to the gate on hardware.

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
        if gpu.problem is not None or not gpu.knows_compute_capability:
            continue
        capability = gpu.compute_capability
        if compiled is not None and not any(_runs_on(each, capability) for each in compiled):
            buildable = [each for each in COMPILABLE if _runs_on(each, capability)]
            known = ", ".join(compiled)
            fix = (
                f'build the image for it: make image COMPUTE_CAPABILITIES="{buildable[-1]}"'
                if buildable
                else f"choose another GPU: kernels can be compiled for {', '.join(COMPILABLE)}, which do not run on it"
            )
            expected = f"a GPU that kernels for compute capability {known} run on"
            faults.append(CONTEXT.fault(found=str(gpu), expected=expected, fix=fix))
            if not buildable:
                continue  # no grade of determinism helps
        if pinned is not None and capability not in pinned:
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
