"""Does this machine have the GPUs that the plan was frozen for?

Asked in milliseconds before anything is loaded, because the alternative is an out-of-memory error or a wrong result
hours later; and asked by ourselves, because the container toolkit's own check (``NVIDIA_REQUIRE_*``) is skipped in CDI
mode. A plan for CPUs never touches NVML.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.gates.nvml import NvmlUnavailable, read_inventory
from explicit_learning.gates.visible import VisibleDevices, visible_devices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from explicit_learning.gates.nvml import Gpu, Inventory
    from explicit_learning.plan.typed_plan import Hardware

__all__ = ["check_hardware", "check_ranks"]

GATE = "hardware"
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
        inventory: An inventory already read; NVML is asked when there is none and the plan wants GPUs.

    Returns:
        Every mismatch, with exit code 69; empty when the run can start here.
    """
    environ = os.environ if environ is None else environ
    faults = check_ranks(requirement.world_size, file=file, nodes=nodes, environ=environ)
    if requirement.accelerator != "cuda":
        return faults
    inventory = read_inventory() if inventory is None else inventory
    local_ranks = -(-requirement.world_size // nodes)
    if isinstance(inventory, NvmlUnavailable):
        expected = f"{local_ranks} GPU{'s' if local_ranks > 1 else ''}{_description(requirement)}"
        return [*faults, _fault(file, "/hardware/accelerator", inventory.reason, expected, inventory.fix)]
    visible = visible_devices(inventory.gpus, environ)
    faults.extend(_driver_faults(requirement, inventory, file))
    faults.extend(_count_faults(requirement, inventory, visible, local_ranks, file))
    for gpu in visible.gpus[:local_ranks]:
        faults.extend(_gpu_faults(requirement, gpu, _fix(requirement, visible.gpus, local_ranks), file))
    return faults


def check_ranks(world_size: int, *, file: str | None, nodes: int, environ: Mapping[str, str]) -> list[Fault]:
    """Compare what a launcher around us says about ranks with the plan.

    A scheduler or an outer ``torchrun`` that set ``WORLD_SIZE`` for another layout would make the ranks wait for each
    other for ever, which looks like a hang and not like a mistake.
    """
    pointer = "/hardware/world_size"
    faults = []
    if world_size % nodes:
        fix = "start the run on a number of nodes that divides the plan's world size"
        faults.append(_fault(file, pointer, f"{world_size} ranks on {nodes} nodes", "the same number on each", fix))
    bounds = {"WORLD_SIZE": (world_size, world_size), "RANK": (0, world_size - 1)}
    for name, (low, high) in bounds.items():
        text = environ.get(name)
        if text is None:
            continue
        if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or not low <= int(text) <= high:
            expected = f"{name}={low}" if low == high else f"{name} from {low} to {high}"
            fix = f"unset {name} (this program starts the ranks itself), or start the planned number of ranks"
            faults.append(_fault(file, pointer, f"{name}={text} in the environment", expected, fix))
    return faults


def _fault(file: str | None, pointer: str, found: str, expected: str, fix: str) -> Fault:
    return Fault(
        gate=GATE, file=file, pointer=pointer, found=found, expected=expected, fix=fix, exit_code=ExitCode.HARDWARE
    )


def _description(requirement: Hardware) -> str:
    """Return the wanted GPU in words, for the fault that has no GPU to compare with."""
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
    """Return a dotted version's numbers, or ``None`` when it is none."""
    return tuple(map(int, text.split("."))) if re.fullmatch(r"[0-9]+(\.[0-9]+)*", text, re.ASCII) else None


def _driver_faults(requirement: Hardware, inventory: Inventory, file: str | None) -> Iterator[Fault]:
    if requirement.driver_minimum is None:
        return
    found, minimum = _version(inventory.driver_version), _version(requirement.driver_minimum)
    if found is None or minimum is None or found < minimum:
        fix = f"install NVIDIA driver {requirement.driver_minimum} or newer on the host"
        yield _fault(
            file,
            "/hardware/driver_minimum",
            f"driver {inventory.driver_version} (serves CUDA {inventory.cuda_driver_version})",
            f"driver {requirement.driver_minimum} or newer",
            fix,
        )


def _count_faults(
    requirement: Hardware,
    inventory: Inventory,
    visible: VisibleDevices,
    local_ranks: int,
    file: str | None,
) -> Iterator[Fault]:
    pointer = "/hardware/world_size"
    if visible.mig_devices:
        yield _fault(
            file,
            "/hardware/accelerator",
            f"CUDA_VISIBLE_DEVICES names MIG devices: {', '.join(visible.mig_devices)}",
            "whole GPUs",
            "name whole GPUs in CUDA_VISIBLE_DEVICES; a slice of a GPU is not the hardware the plan was frozen for",
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
        "name enough GPUs in CUDA_VISIBLE_DEVICES, or unset it"
        if len(inventory.gpus) >= local_ranks
        else "start the container with --gpus all, use a machine with more GPUs, or freeze the plan for fewer ranks"
    )
    yield _fault(file, pointer, found, f"{local_ranks} on this machine{_description(requirement)}", fix)


def _gpu_faults(requirement: Hardware, gpu: Gpu, choose: str, file: str | None) -> Iterator[Fault]:
    """Yield what is wrong with one GPU; unusable ones are not asked further. ``choose`` says which others to take."""
    if gpu.problem is not None:
        fix = "hide it with CUDA_VISIBLE_DEVICES, and reset it or reboot the host (nvidia-smi -q, the kernel log's Xid)"
        yield _fault(file, "/hardware/accelerator", str(gpu), "a working GPU", fix)
        return
    if gpu.mig_mode == "enabled":
        fix = "switch MIG off on the host (nvidia-smi -i INDEX -mig 0), or choose other GPUs with CUDA_VISIBLE_DEVICES"
        yield _fault(file, "/hardware/accelerator", str(gpu), "a whole GPU, MIG disabled", fix)
    if gpu.compute_mode == "prohibited":
        fix = "allow computation on the host (nvidia-smi -i INDEX -c DEFAULT)"
        yield _fault(file, "/hardware/accelerator", f"{gpu}, compute mode prohibited", "compute mode default", fix)
    if requirement.gpu_name_pattern is not None and not _name_matches(requirement, gpu):
        expected = f"a name matching {requirement.gpu_name_pattern!r}"
        yield _fault(file, "/hardware/gpu_name_pattern", str(gpu), expected, choose)
    if requirement.compute_capability is not None and gpu.compute_capability != requirement.compute_capability:
        expected = f"compute capability {requirement.compute_capability}"
        yield _fault(file, "/hardware/compute_capability", str(gpu), expected, choose)
    if requirement.gpu_memory_gib is not None and not _memory_suffices(requirement, gpu):
        expected = f"at least {requirement.gpu_memory_gib:g} GiB of memory"
        yield _fault(file, "/hardware/gpu_memory_gib", str(gpu), expected, choose)


def _name_matches(requirement: Hardware, gpu: Gpu) -> bool:
    """Say whether the name fits; a pattern that is no regular expression is the plan gate's fault to report."""
    try:
        return re.search(requirement.gpu_name_pattern or "", gpu.name) is not None
    except re.error:
        return False


def _memory_suffices(requirement: Hardware, gpu: Gpu) -> bool:
    return isinstance(gpu.memory_bytes, int) and gpu.memory_bytes >= (requirement.gpu_memory_gib or 0) * 2**30


def _fix(requirement: Hardware, visible: Sequence[Gpu], local_ranks: int) -> str:
    """Name the GPUs that would do, where there are enough of them."""
    suitable = [
        gpu.uuid
        for gpu in visible
        if gpu.problem is None
        and gpu.mig_mode != "enabled"
        and _name_matches(requirement, gpu)
        and requirement.compute_capability in (None, gpu.compute_capability)
        and (requirement.gpu_memory_gib is None or _memory_suffices(requirement, gpu))
    ]
    if len(suitable) >= local_ranks:
        return f"set CUDA_VISIBLE_DEVICES={','.join(suitable[:local_ranks])}"
    return CHOOSE_GPUS
