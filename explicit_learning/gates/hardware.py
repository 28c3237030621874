"""Does this machine have the GPUs that the plan was frozen for?

Checked in milliseconds before anything is loaded, because the alternative is an out-of-memory error or a wrong result
hours later. The container toolkit's own check (``NVIDIA_REQUIRE_*``) cannot be relied on: it is skipped in CDI mode. A
plan for CPUs never calls NVML.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Fault, Refusal
from explicit_learning.gates.nvml import NvmlUnavailable, read_inventory
from explicit_learning.gates.visible import VisibleDevices, visible_devices
from explicit_learning.lock import FULL_LOCK, read_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from explicit_learning.gates.nvml import Gpu, Inventory
    from explicit_learning.plan.typed_plan import Hardware

__all__ = ["check_hardware", "check_ranks"]

CONTEXT = Context(gate="hardware", exit_code=ExitCode.HARDWARE)
CHOOSE_GPUS = "choose other GPUs with CUDA_VISIBLE_DEVICES, or freeze the plan for this hardware"


def check_hardware(
    requirement: Hardware,
    *,
    file: str | None = None,
    nodes: int = 1,
    environ: Mapping[str, str] | None = None,
    inventory: Inventory | NvmlUnavailable | None = None,
) -> list[Fault]:
    """Compare this machine with a plan's ``hardware`` group.

    Args:
        requirement: The plan's ``hardware`` group; ``None`` in a field means any. The name pattern is searched for, the
            compute capability is compared exactly, and memory is the total as NVML counts it (an H200 has 140.4 GiB).
        file: The plan's path as the user named it, for the faults.
        nodes: Machines that share the ranks evenly.
        environ: Environment to read masks and ranks from; the process's own by default.
        inventory: An inventory already read; without one, NVML is read if the plan needs GPUs.

    The driver is also compared with what the full lock's CUDA needs, whatever the plan asks for.

    Returns:
        Every mismatch, with exit code 69; empty when the run can start here. What is wrong with the lock itself has the
        lock's own exit code.
    """
    environ = os.environ if environ is None else environ
    faults = check_ranks(requirement.world_size, file=file, nodes=nodes, environ=environ)
    if requirement.accelerator != "cuda":
        return faults
    inventory = read_inventory() if inventory is None else inventory
    context, local_ranks = replace(CONTEXT, file=file), requirement.ranks_per_node(nodes)
    if isinstance(inventory, NvmlUnavailable):
        expected = f"{local_ranks} GPU{'s' if local_ranks > 1 else ''}{_description(requirement)}"
        found, fix = inventory.reason, inventory.fix
        return [*faults, context.fault(pointer="/hardware/accelerator", found=found, expected=expected, fix=fix)]
    visible = visible_devices(inventory.gpus, environ)
    faults += _driver_faults(requirement, inventory, context)
    faults += _count_faults(requirement, inventory, visible, local_ranks, context)
    context = replace(context, fix=_fix(requirement, visible.gpus, local_ranks))
    for gpu in visible.gpus[:local_ranks]:
        faults += _gpu_faults(requirement, gpu, context)
    return faults


def check_ranks(world_size: int, *, file: str | None, nodes: int, environ: Mapping[str, str]) -> list[Fault]:
    """Compare the ranks that a scheduler or an outer launcher announces in the environment with the plan's.

    With a ``WORLD_SIZE`` for another layout the ranks would wait for each other forever, which looks like a hang and
    not like a mistake.
    """
    context, pointer = replace(CONTEXT, file=file), "/hardware/world_size"
    faults = []
    if world_size % nodes:
        found, fix = (
            f"{world_size} ranks on {nodes} nodes",
            "start the run on a number of nodes that divides world_size",
        )
        faults.append(context.fault(pointer=pointer, found=found, expected="the same number on each node", fix=fix))
    bounds = {"WORLD_SIZE": (world_size, world_size), "RANK": (0, world_size - 1)}
    for name, (low, high) in bounds.items():
        text = environ.get(name)
        if text is None:
            continue
        if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or not low <= int(text) <= high:
            expected = f"{name}={low}" if low == high else f"{name} from {low} to {high}"
            fix = f"unset {name} (this program starts the ranks itself), or start the planned number of ranks"
            found = f"{name}={text} in the environment"
            faults.append(context.fault(pointer=pointer, found=found, expected=expected, fix=fix))
    return faults


def _description(requirement: Hardware) -> str:
    """Return the required GPU in words, for the fault that has no GPU to compare with."""
    parts = []
    if requirement.gpu_name_pattern is not None:
        parts.append(f"name matching {requirement.gpu_name_pattern!r}")
    if requirement.compute_capability is not None:
        parts.append(f"compute capability {requirement.compute_capability}")
    if requirement.gpu_memory_gib is not None:
        parts.append(f"at least {requirement.gpu_memory_gib:g} GiB each")
    if requirement.driver_minimum is not None:
        parts.append(f"driver {requirement.driver_minimum} or newer")
    return f" ({', '.join(parts)})" if parts else ""


def _version(text: str) -> tuple[int, ...] | None:
    """Return a dotted version's numbers, or ``None`` for any other text."""
    return tuple(map(int, text.split("."))) if re.fullmatch(r"[0-9]+(\.[0-9]+)*", text, re.ASCII) else None


def _driver_faults(requirement: Hardware, inventory: Inventory, context: Context) -> Iterator[Fault]:
    """Compare the driver with the newest of those that the plan and the lock ask for."""
    try:
        head = read_lock(FULL_LOCK).head
    except Refusal as refusal:
        yield from refusal.faults
        return
    needed, why = head.driver_minimum, f", which CUDA {head.cuda} needs"
    at, pointer = context.at(FULL_LOCK), "driver_minimum"
    planned = requirement.driver_minimum
    if planned is not None and (_version(planned) or ()) >= (_version(needed) or ()):
        needed, why, at, pointer = planned, "", context, "/hardware/driver_minimum"
    found, minimum = _version(inventory.driver_version), _version(needed)
    if found is None or minimum is None or found < minimum:
        yield at.fault(
            pointer=pointer,
            found=f"driver {inventory.driver_version} (supports CUDA {inventory.cuda_driver_version})",
            expected=f"driver {needed} or newer{why}",
            fix=f"install NVIDIA driver {needed} or newer on the host",
        )


def _count_faults(
    requirement: Hardware,
    inventory: Inventory,
    visible: VisibleDevices,
    local_ranks: int,
    context: Context,
) -> Iterator[Fault]:
    if visible.mig_devices:
        yield context.fault(
            pointer="/hardware/accelerator",
            found=f"CUDA_VISIBLE_DEVICES names MIG devices: {', '.join(visible.mig_devices)}",
            expected="whole GPUs",
            fix="name whole GPUs in CUDA_VISIBLE_DEVICES: the plan was not frozen for a slice of a GPU",
        )
        return
    if len(visible.gpus) >= local_ranks:
        return
    mask = "CUDA_VISIBLE_DEVICES unset" if visible.mask is None else f"CUDA_VISIBLE_DEVICES={visible.mask!r}"
    found = f"{len(visible.gpus)} visible of {len(inventory.gpus)} ({mask})"
    if visible.notes:
        found += f"; {'; '.join(visible.notes)}"
    if inventory.gpus:
        found += f": {'; '.join(map(str, inventory.gpus))}"
    fix = (
        "ask the scheduler for enough GPUs; on a machine of your own, name them in CUDA_VISIBLE_DEVICES"
        if len(inventory.gpus) >= local_ranks
        else "start the container with --gpus all, use a machine with more GPUs, or freeze the plan for fewer ranks"
    )
    expected = f"{local_ranks} on this machine{_description(requirement)}"
    yield context.fault(pointer="/hardware/world_size", found=found, expected=expected, fix=fix)


def _gpu_faults(requirement: Hardware, gpu: Gpu, context: Context) -> Iterator[Fault]:
    """Yield what is wrong with one GPU, of an unusable one nothing more. The context's fix names other GPUs."""
    pointer, found = "/hardware/accelerator", str(gpu)
    if gpu.problem is not None:
        fix = "hide it with CUDA_VISIBLE_DEVICES, and reset it or reboot the host (nvidia-smi -q, the kernel log's Xid)"
        yield context.fault(pointer=pointer, found=found, expected="a working GPU", fix=fix)
        return
    if gpu.mig_mode == "enabled":
        fix = "switch MIG off on the host (nvidia-smi -i INDEX -mig 0), or choose other GPUs with CUDA_VISIBLE_DEVICES"
        yield context.fault(pointer=pointer, found=found, expected="a whole GPU, MIG disabled", fix=fix)
    if gpu.compute_mode == "prohibited":
        prohibited, fix = (
            f"{gpu}, compute mode prohibited",
            "allow computation on the host (nvidia-smi -i INDEX -c DEFAULT)",
        )
        yield context.fault(pointer=pointer, found=prohibited, expected="compute mode default", fix=fix)
    if requirement.gpu_name_pattern is not None and not _name_matches(requirement, gpu):
        expected = f"a name matching {requirement.gpu_name_pattern!r}"
        yield context.fault(pointer="/hardware/gpu_name_pattern", found=found, expected=expected)
    capability = requirement.compute_capability
    if not gpu.knows_compute_capability:
        expected = "a compute capability (MAJOR.MINOR)" if capability is None else f"compute capability {capability}"
        fix = "update the NVIDIA driver on the host, which reports none, or choose other GPUs with CUDA_VISIBLE_DEVICES"
        yield context.fault(pointer="/hardware/compute_capability", found=found, expected=expected, fix=fix)
    elif capability not in (None, gpu.compute_capability):
        expected = f"compute capability {capability}"
        yield context.fault(pointer="/hardware/compute_capability", found=found, expected=expected)
    if requirement.gpu_memory_gib is not None and not _memory_suffices(requirement, gpu):
        expected = f"at least {requirement.gpu_memory_gib:g} GiB of memory"
        yield context.fault(pointer="/hardware/gpu_memory_gib", found=found, expected=expected)


def _name_matches(requirement: Hardware, gpu: Gpu) -> bool:
    """Return whether the name fits. A pattern that is not a regular expression is reported by the plan's schema."""
    try:
        return re.search(requirement.gpu_name_pattern or "", gpu.name) is not None
    except re.error:
        return False


def _memory_suffices(requirement: Hardware, gpu: Gpu) -> bool:
    return isinstance(gpu.memory_bytes, int) and gpu.memory_bytes >= (requirement.gpu_memory_gib or 0) * 2**30


def _fix(requirement: Hardware, visible: Sequence[Gpu], local_ranks: int) -> str:
    """Return which GPUs to choose, if enough of them fit."""
    suitable = [
        gpu.uuid
        for gpu in visible
        if gpu.problem is None
        and gpu.mig_mode != "enabled"
        and gpu.knows_compute_capability
        and _name_matches(requirement, gpu)
        and requirement.compute_capability in (None, gpu.compute_capability)
        and (requirement.gpu_memory_gib is None or _memory_suffices(requirement, gpu))
    ]
    if len(suitable) >= local_ranks:
        return f"set CUDA_VISIBLE_DEVICES={','.join(suitable[:local_ranks])}"
    return CHOOSE_GPUS
