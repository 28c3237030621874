"""What a machine has, and what would fail on it: the same gates as for a run, asked without a plan.

Meant for the moment before a plan exists, and for pasting into a bug report: it needs no plan, leaves nothing behind,
and shows no host name and no secret.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Fault, Refusal
from explicit_learning.files.child_environment import KEY_VARIABLE
from explicit_learning.files.typed_json import to_json
from explicit_learning.gates.compiler import check_compiler
from explicit_learning.gates.disk import existing_ancestor
from explicit_learning.gates.environment import check_environment
from explicit_learning.gates.hardware import check_hardware
from explicit_learning.gates.image import check_image, image_identity
from explicit_learning.gates.kernels import check_visible_kernels
from explicit_learning.gates.machine import measure_hardware, read_limits
from explicit_learning.gates.nvml import Inventory, NvmlUnavailable, read_inventory
from explicit_learning.gates.output import check_output
from explicit_learning.gates.shm import check_shm, shm_need
from explicit_learning.gates.signing import check_signing_key
from explicit_learning.gates.temporary import check_temporary_folder
from explicit_learning.gates.trackers import check_trackers
from explicit_learning.gates.visible import VisibleDevices, visible_devices
from explicit_learning.inputs.code import code_faults
from explicit_learning.lock import FULL_LOCK
from explicit_learning.lock.installed import nearest_lock
from explicit_learning.plan.typed_plan import Hardware
from explicit_learning.rundir.layout import default_runs_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Findings", "examine"]

SECRETS = (KEY_VARIABLE,)
SHOWN_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "WORLD_SIZE",
    "RANK",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "PYTHONPATH",
)
# Below these, runs have been seen to fail in ways that do not name the limit.
FEW_OPEN_FILES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the machine has.

    Attributes:
        python: Python's version.
        lock: Name of the lock that is nearest to the environment.
        inventory: The GPUs that the driver knows, or why there are none.
        visible: Those that a run would see.
        machine: Hardware and kernel, as a run records them.
        limits: Limits of this process and its control group; ``None`` for no limit.
        disk: The space where runs go by default.
        image: The image's identity.
        variables: The environment variables that matter; values of secrets are left out.
        cpu_faults: Why a CPU plan could not start here.
        gpu_faults: Why a GPU plan could not start here, under the default grade of determinism.
    """

    python: str
    lock: str
    inventory: Inventory | NvmlUnavailable
    visible: VisibleDevices
    machine: dict[str, Any]
    limits: dict[str, int | None]
    disk: dict[str, Any]
    image: dict[str, Any]
    variables: dict[str, str]
    cpu_faults: list[Fault]
    gpu_faults: list[Fault]

    def notes(self) -> Iterator[str]:
        """Yield what stops no plan by itself, but explains failures."""
        yield from self.visible.notes
        open_files = self.limits["open_files"]
        if open_files is not None and open_files < FEW_OPEN_FILES:
            yield f"only {open_files} open files are allowed: raise the limit (ulimit -n, docker --ulimit nofile)"
        if len(self.visible.gpus) > 1 and self.limits["locked_memory_bytes"] is not None:
            yield "locked memory is limited: NCCL may fail to register buffers (docker --ulimit memlock=-1)"
        ranks = len(self.visible.gpus)
        need = shm_need(self.inventory, local_ranks=ranks, nodes=1, environ=os.environ)
        for fault in check_shm(need):
            yield f"a plan for {ranks} GPUs needs more shared memory: {fault.found}, {fault.expected} ({fault.fix})"
        if self.variables.get("NVIDIA_VISIBLE_DEVICES") in {"void", "none"}:
            yield "NVIDIA_VISIBLE_DEVICES hides all GPUs from this container"


def examine() -> Findings:
    """Look at this machine."""
    inventory = read_inventory()
    runs = default_runs_folder()
    lock, cpu_environment, gpu_environment = _environment_faults()
    common = [
        *code_faults(),
        *check_trackers(os.environ),
        *check_signing_key(os.environ),
        *check_temporary_folder(),
        *check_output(runs / "RUN_ID", frozen_config_sha256=None),
    ]
    visible = visible_devices(inventory.gpus if isinstance(inventory, Inventory) else (), os.environ)
    return Findings(
        python=platform.python_version(),
        lock=lock,
        inventory=inventory,
        visible=visible,
        machine=measure_hardware(inventory),
        limits=asdict(read_limits()),
        disk=_disk(runs),
        image=_image(),
        variables=_variables(),
        cpu_faults=[
            *cpu_environment,
            *check_hardware(_any_hardware("cpu"), inventory=inventory),
            *common,
        ],
        gpu_faults=[
            *dict.fromkeys(  # a lock that cannot be read is told by each gate that reads it
                [
                    *gpu_environment,
                    *check_hardware(_any_hardware("cuda"), inventory=inventory),
                    *check_visible_kernels(inventory, ranks=1, strict=True),
                    *check_compiler(os.environ),
                    *common,
                ]
            )
        ],
    )


def _any_hardware(accelerator: str) -> Hardware:
    return Hardware(
        accelerator="cuda" if accelerator == "cuda" else "cpu",
        world_size=1,
        gpu_name_pattern=None,
        compute_capability=None,
        gpu_memory_gib=None,
        driver_minimum=None,
    )


def _environment_faults() -> tuple[str, list[Fault], list[Fault]]:
    """Return the nearest lock's name, what differs from it (CPU plans) and what from the full lock (GPU plans)."""
    try:
        nearest = nearest_lock()
        cpu = check_environment(nearest)
        gpu = cpu if nearest == FULL_LOCK else check_environment(FULL_LOCK)
        cpu, gpu = ([*check_image(None, file=None), *faults] for faults in (cpu, gpu))
    except Refusal as refusal:
        return "unreadable", list(refusal.faults), list(refusal.faults)
    return nearest.name, cpu, gpu


def _disk(runs: Path) -> dict[str, Any]:
    """Return the space where runs go by default."""
    try:
        status = os.statvfs(existing_ancestor(runs))
    except OSError as error:
        return {"folder": str(runs), "problem": error.strerror}
    return {
        "folder": str(runs),
        "free_bytes": status.f_bavail * status.f_frsize,
        "total_bytes": status.f_blocks * status.f_frsize,
    }


def _image() -> dict[str, Any]:
    """Return the image's identity: baked in where this runs in one, with the digests that its starter declared."""
    try:
        identity: dict[str, Any] = to_json(image_identity())
    except Refusal as refusal:
        return {"problem": "; ".join(str(fault) for fault in refusal.faults)}
    return identity


def _variables() -> dict[str, str]:
    names = [name for name in SHOWN_VARIABLES if name in os.environ]
    names += sorted(name for name in os.environ if name.startswith("EXPLICIT_"))
    return {name: "(set)" if name in SECRETS else os.environ[name] for name in names}
