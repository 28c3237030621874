"""What a run was made on: the machine around the GPUs.

Floating-point results depend on the processor's instruction set and on library builds as well as on the GPU, so each
launch records them. Nothing here names the host or its user: a run directory is meant to be shared. Everything is
constant on a machine that nobody changes, so that launches on one machine have equal records. `Limits` holds the
figures that change; only a person at the terminal needs them.
"""

from __future__ import annotations

import os
import platform
import re
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.gates.nvml import UNSUPPORTED, Inventory, NvmlUnavailable, read_inventory
from explicit_learning.gates.shm import SHARED_MEMORY
from explicit_learning.gates.visible import visible_devices
from explicit_learning.lock.installed import installed_packages
from explicit_learning.rundir.launches import Platform

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Limits",
    "available_memory_bytes",
    "container_runtime",
    "measure_hardware",
    "measure_platform",
    "read_limits",
]

# What each runtime writes inside its containers.
RUNTIME_FILES = {"/run/.containerenv": "podman", "/.dockerenv": "docker", "/.singularity.d": "apptainer"}
RUNTIME_VARIABLES = {
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}
# What systemd asks of container managers; podman sets it.
MANAGER_VARIABLE = "container"
# From about 2^60 on, a version 1 control group means "no limit" (the largest page-aligned long).
NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of this process; ``None`` is "unlimited" or "not set".

    Attributes:
        open_files: Soft limit on open files (``ulimit -n``).
        processes: Soft limit on the user's processes (``ulimit -u``).
        locked_memory_bytes: Soft limit on locked memory (``ulimit -l``); NCCL pins memory with it.
        cgroup_memory_bytes: Memory limit of the innermost control group that has one.
    """

    open_files: int | None
    processes: int | None
    locked_memory_bytes: int | None
    cgroup_memory_bytes: int | None


def measure_hardware(inventory: Inventory | NvmlUnavailable | None = None) -> dict[str, Any]:
    """Return the machine as a launch records it: JSON types only, no host name.

    Args:
        inventory: An inventory already read; without one, NVML is read.
    """
    nvidia = read_inventory() if inventory is None else inventory
    return {
        "nvidia": nvidia.to_json(),
        "cpu": {
            "model": _cpu_field("model name", "Model", "Hardware"),
            "architecture": platform.machine(),
            "instruction_sets": _vector_instructions(),
            "logical_cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)),
        },
        "memory_bytes": _memory_bytes(),
        "cgroup_memory_bytes": read_limits().cgroup_memory_bytes,
        "shared_memory_bytes": _file_system_bytes(SHARED_MEMORY),
        "kernel": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "container_runtime": container_runtime(),
    }


def measure_platform(
    *, accelerator: str, local_ranks: int, environ: Mapping[str, str], inventory: Inventory | NvmlUnavailable
) -> Platform:
    """Return what computes on this machine, as a launch records it.

    Args:
        accelerator: The plan's, ``cpu`` or ``cuda``.
        local_ranks: Ranks on this machine; the rank with local index *i* gets the *i*-th GPU that is visible.
        environ: The environment that decides which GPUs are visible.
        inventory: The GPUs that NVML reports.
    """
    gpus = inventory.gpus if isinstance(inventory, Inventory) else ()
    used = visible_devices(gpus, environ).gpus[:local_ranks] if accelerator == "cuda" else ()
    libraries = {package.name: package.version for package in reversed(installed_packages())}
    libc, libc_version = platform.libc_ver()
    libraries |= {libc or "libc": libc_version, "python": platform.python_version()}
    return Platform(
        hardware=measure_hardware(inventory),
        gpus=tuple(gpu.uuid for gpu in used),
        libraries=dict(
            sorted({**libraries, libc or "libc": libc_version, "python": platform.python_version()}.items())
        ),
    )


def container_runtime() -> str:
    """Return the runtime of the container around this process: its name, or ``none detected``."""
    names = [os.environ[MANAGER_VARIABLE]] if os.environ.get(MANAGER_VARIABLE) else []
    names += [name for variable, name in RUNTIME_VARIABLES.items() if variable in os.environ]
    names += [name for file, name in RUNTIME_FILES.items() if Path(file).exists()]
    return "+".join(dict.fromkeys(names)) or "none detected"


def read_limits() -> Limits:
    """Return the limits that have ended runs before."""
    return Limits(
        open_files=_soft_limit(resource.RLIMIT_NOFILE),
        processes=_soft_limit(resource.RLIMIT_NPROC),
        locked_memory_bytes=_soft_limit(resource.RLIMIT_MEMLOCK),
        cgroup_memory_bytes=_cgroup_memory(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
    )


def available_memory_bytes() -> int:
    """Return the memory that processes may take together: the machine's, or the control group's where that is less."""
    limit = read_limits().cgroup_memory_bytes
    return _memory_bytes() if limit is None else min(limit, _memory_bytes())


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _soft_limit(kind: int) -> int | None:
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _cgroup_memory(membership: Path, root: Path) -> int | None:
    """Return the tightest memory limit on the way from this process's control group to the root, in bytes.

    Args:
        membership: ``/proc/self/cgroup``: lines of ``ID:CONTROLLERS:PATH``.
        root: Where the control groups are mounted: version 2 at the root itself, version 1 in ``memory/``. Inside a
            container the path can lie outside what is mounted; the mount's own root then is the container's group.
    """
    limits = []
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(base):
                text = _read(group / name).strip()
                limits += [int(text)] if text.isdecimal() and int(text) < NO_LIMIT else []
    return min(limits, default=None)


def _cpu_field(*names: str) -> str:
    """Return the first of several fields of ``/proc/cpuinfo`` (their names differ between architectures)."""
    text = _read(Path("/proc/cpuinfo"))
    for name in names:
        match = re.search(rf"^{re.escape(name)}\s*:\s*(.+)$", text, re.MULTILINE)
        if match:
            return match.group(1).strip()
    return UNSUPPORTED


def _vector_instructions() -> list[str]:
    """Return the vector extensions that numerical libraries choose their kernels by."""
    flags = _cpu_field("flags", "Features").split()
    return sorted(flag for flag in flags if re.match(r"(avx|amx|fma$|sve|asimd|bf16)", flag))


def _file_system_bytes(path: Path) -> int | str:
    try:
        status = os.statvfs(path)
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return status.f_blocks * status.f_frsize


def _read(path: Path) -> str:
    """Return a file of ``/proc`` or ``/sys``, empty where the kernel has none or a container hides it."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
