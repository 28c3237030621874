"""Is ``/dev/shm`` large enough for what NCCL puts there?

Docker gives a container 64 MiB of it. NCCL extends its segments to their full size when ranks connect, and ends the
run where that fails. One GPU needs none, nor do ranks on CPUs (Gloo speaks TCP), nor GPUs that reach each other
directly: over NVLink, or through PCIe switches. Between other GPUs of one machine, data crosses the host's memory in
segments whose size NCCL fixes (read in NCCL 2.29.7, `transport/shm.cc`, `init.cc` and `proxy.cc`). It can keep them
outside ``/dev/shm`` on a new driver, but not in a container that may not set NUMA policies, so that is not counted on.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Fault
from explicit_learning.gates.nvml import Inventory
from explicit_learning.gates.visible import visible_devices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.gates.nvml import Link, NvmlUnavailable

__all__ = ["SHARED_MEMORY", "ShmNeed", "check_shm", "shm_need"]

CONTEXT = Context(gate="shm", exit_code=ExitCode.HARDWARE)
POINTER = "/hardware/world_size"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's fixed name, not a temporary file of ours
MIB = 2**20
PAGE = 4096
# What one GPU receives from another on one channel: the buffers of the protocols LL, LL128 and Simple (NCCL_BUFFSIZE),
# a page of counters and a count of users; what it sends has a page of counters. Each segment is whole pages.
SEGMENT_BYTES = (512 * 1024 + 4800 * 1024 + 4 * MIB + PAGE + PAGE) + (PAGE + PAGE)
# NCCL builds 2 channels between GPUs whose data crosses the host; as much again is kept for machines that get more.
CHANNELS = 4
# A rank that has peers on other nodes shares this pool of operations with the thread that serves the network.
POOL_BYTES = 34_213_888
# PCIe paths that NCCL takes without the host: within a board, and through one or more switches.
SWITCHED_PATHS = frozenset({"internal", "single", "multiple"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShmNeed:
    """What NCCL puts into the shared memory of one machine.

    Attributes:
        byte_count: How much. Unit: bytes.
        reason: What for, in words.
    """

    byte_count: int
    reason: str


def shm_need(
    inventory: Inventory | NvmlUnavailable, *, local_ranks: int, nodes: int, environ: Mapping[str, str]
) -> ShmNeed:
    """Return how much shared memory a run on GPUs needs on this machine.

    Args:
        inventory: This machine's GPUs; one that cannot be read needs nothing here, it is refused for itself.
        local_ranks: Ranks on this machine, one on each of the first visible GPUs.
        nodes: Machines of the run.
        environ: Environment to read masks and NCCL's settings from.
    """
    parts: list[tuple[int, str]] = []
    if isinstance(inventory, Inventory):
        gpus = {gpu.uuid for gpu in visible_devices(inventory.gpus, environ).gpus[:local_ranks]}
        links = [link for link in inventory.topology if gpus.issuperset(link.between)]
        crossing = sum(not _is_direct(link, environ) for link in links)
        # NCCL joins the GPUs to a ring, and each of its GPUs has two neighbours.
        pairs = min(crossing, len(gpus) if len(gpus) > 2 else 1)  # noqa: PLR2004 - two GPUs are one pair
        if pairs:
            where = "a pair" if pairs == 1 else f"each of {pairs} pairs"
            reason = f"{CHANNELS} channels in 2 directions for {where} of GPUs without NVLink or a common PCIe switch"
            parts.append((pairs * 2 * CHANNELS * SEGMENT_BYTES, reason))
    if nodes > 1:
        parts.append((local_ranks * POOL_BYTES, f"{local_ranks} ranks with peers on other nodes"))
    return ShmNeed(
        byte_count=sum(byte_count for byte_count, _ in parts),
        reason=" and ".join(f"{_mib(byte_count)} MiB for {reason}" for byte_count, reason in parts),
    )


def _is_direct(link: Link, environ: Mapping[str, str]) -> bool:
    """Return whether NCCL lets two GPUs read each other's memory."""
    if environ.get("NCCL_P2P_DISABLE", "0") != "0":
        return False
    return link.nvlink == "yes" or (link.peer_access == "yes" and link.path in SWITCHED_PATHS)


def _mib(byte_count: int) -> int:
    """Return bytes in MiB, rounded up."""
    return -(-byte_count // MIB)


def check_shm(need: ShmNeed, *, file: str | None = None, path: Path = SHARED_MEMORY) -> list[Fault]:
    """Compare free shared memory with a run's need; a need of 0 is always met."""
    if need.byte_count <= 0:
        return []
    size = f"{-(-need.byte_count // (1024 * MIB))}g"
    fix = f"start the container with --shm-size={size} or --ipc=host"
    expected = f"at least {_mib(need.byte_count)} MiB free for NCCL: {need.reason}"
    try:
        with tempfile.TemporaryFile(dir=path):
            status = os.statvfs(path)
    except OSError as error:
        found, fix = f"{path} cannot be used: {error.strerror}", f"mount a tmpfs there: {fix}"
        return [CONTEXT.fault(file=file, pointer=POINTER, found=found, expected=expected, fix=fix)]
    free = status.f_bavail * status.f_frsize
    if free >= need.byte_count:
        return []
    found = f"{path} has {free // MIB} MiB free of {status.f_blocks * status.f_frsize // MIB} MiB"
    return [CONTEXT.fault(file=file, pointer=POINTER, found=found, expected=expected, fix=fix)]
