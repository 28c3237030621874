"""What would refuse a step of a selftest on this machine, found before the first one.

Each step starts commands and ranks that have gates of their own. Without this, one cause is told once by every step, a
minute apart.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.gates.compiler import check_compiler
from explicit_learning.gates.environment import check_environment
from explicit_learning.gates.hardware import check_hardware, check_ranks
from explicit_learning.gates.image import baked_identity, check_image
from explicit_learning.gates.kernels import check_kernels
from explicit_learning.gates.nvml import NvmlUnavailable, read_inventory
from explicit_learning.gates.shm import check_shm, shm_need
from explicit_learning.gates.temporary import check_temporary_folder
from explicit_learning.gates.trackers import check_trackers
from explicit_learning.gates.visible import VisibleDevices, visible_devices
from explicit_learning.inputs.code import code_faults
from explicit_learning.lock import FULL_LOCK, read_lock
from explicit_learning.lock.installed import lock_of_new_plan
from explicit_learning.plan.typed_plan import Hardware

if TYPE_CHECKING:
    from explicit_learning.errors import Fault
    from explicit_learning.gates.nvml import Gpu, Inventory

__all__ = ["driver_minimum", "driver_version", "machine_faults", "visible_gpus"]

SEEDED = (
    'all plans of a selftest are strict: on this GPU, freeze a plan of your own with "determinism": "seeded", and pass '
    "`el smoke` with it"
)
RANK_VARIABLES = ("RANK", "WORLD_SIZE")


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that ranks would see here."""
    return _visible(read_inventory()).gpus


def driver_minimum() -> str:
    """Return the oldest driver that the full lock's CUDA runs under.

    Raises:
        Refusal: If the lock cannot be read.
    """
    return read_lock(FULL_LOCK).head.driver_minimum


def driver_version() -> str:
    """Return the driver's version, or why it is not known."""
    inventory = read_inventory()
    return inventory.reason if isinstance(inventory, NvmlUnavailable) else inventory.driver_version


def machine_faults(accelerator: str, steps: str) -> list[Fault]:
    """Return every reason for which a step would be refused here, whatever it trains.

    Args:
        accelerator: ``cpu`` or ``cuda``.
        steps: What the selftest does, in words, for a machine that has no GPU.

    Returns:
        The faults of hardware first. Without a GPU all of them lead to 69: it is the wrong machine, whatever is
        installed there.
    """
    faults = check_ranks(1, file=None, nodes=1, environ=os.environ)
    without_gpu = False
    if accelerator == "cuda":
        inventory = read_inventory()
        without_gpu = not _visible(inventory).gpus
        unfit = _gpu_faults(inventory)
        faults += [*unfit[:-1], _described(unfit[-1], inventory, steps)] if without_gpu else unfit
        faults += check_compiler(os.environ)
    faults += [
        *_environment_faults(accelerator),
        *code_faults(),
        *check_trackers(os.environ),
        *check_temporary_folder(),
    ]
    return [replace(fault, exit_code=ExitCode.HARDWARE) for fault in faults] if without_gpu else faults


def _visible(inventory: Inventory | NvmlUnavailable) -> VisibleDevices:
    return visible_devices(() if isinstance(inventory, NvmlUnavailable) else inventory.gpus, os.environ)


def _gpu_faults(inventory: Inventory | NvmlUnavailable) -> list[Fault]:
    """Return what is wrong with the driver and the visible GPUs, of which the all-reduce uses each.

    That there is none is told last.
    """
    gpus = _visible(inventory).gpus
    ranks = max(1, len(gpus))
    hardware = Hardware(
        accelerator="cuda",
        world_size=ranks,
        gpu_name_pattern=None,
        compute_capability=None,
        gpu_memory_gib=None,
        driver_minimum=driver_minimum(),
    )
    environ = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    faults = check_hardware(hardware, environ=environ, inventory=inventory)
    if gpus:
        with suppress(Refusal):  # the gate on the image reports an identity that is broken
            kernels = check_kernels(gpus, strict=True, baked=baked_identity())
            faults += [replace(fault, fix=SEEDED) if fault.pointer == "/determinism" else fault for fault in kernels]
    return faults + check_shm(shm_need(inventory, local_ranks=ranks, nodes=1, environ=os.environ))


def _described(fault: Fault, inventory: Inventory | NvmlUnavailable, steps: str) -> Fault:
    """Return the fault of a machine without GPUs, with what the selftest does on one that has some."""
    advice = fault.fix
    if not isinstance(inventory, NvmlUnavailable) and not _visible(inventory).mig_devices:
        advice = "unset CUDA_VISIBLE_DEVICES, or start the container with --gpus all"
    return replace(
        fault,
        expected=f"{fault.expected}. With one, this command would: {steps}",
        fix=f"{advice}; `el selftest --cpu` goes through the same steps on a CPU",
    )


def _environment_faults(accelerator: str) -> list[Fault]:
    """Compare the environment with the lock that `el freeze` writes into the steps' plans."""
    try:
        lock = lock_of_new_plan(accelerator)
        return check_image(read_lock(lock).sha256, file=None) or check_environment(lock)
    except Refusal as refusal:
        return list(refusal.faults)
