"""``el doctor``: what this machine has, and what would fail on it.

Meant for the moment before a plan exists, and for pasting into a bug report: it needs no plan, leaves nothing behind,
shows no host name and no secret. The two questions at the end (would a CPU plan start, would a GPU plan?) are put to
the same gates that a run asks.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Fault, Refusal, exit_code_of
from explicit_learning.gates.disk import existing_ancestor
from explicit_learning.gates.environment import check_environment
from explicit_learning.gates.hardware import check_hardware
from explicit_learning.gates.image import DIGEST_VARIABLE, check_image, image_identity
from explicit_learning.gates.machine import measure_hardware, read_limits
from explicit_learning.gates.nvml import Inventory, NvmlUnavailable, read_inventory
from explicit_learning.gates.output import check_output
from explicit_learning.gates.shm import (
    SHARED_MEMORY,
    LoaderShape,
    check_shm,
    pixel_values_per_token,
    required_shm_bytes,
)
from explicit_learning.gates.trackers import check_trackers
from explicit_learning.gates.visible import VisibleDevices, visible_devices
from explicit_learning.inputs.code import code_faults
from explicit_learning.lock import FULL_LOCK
from explicit_learning.lock.installed import nearest_lock
from explicit_learning.plan.typed_plan import Hardware

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "doctor"
HELP = "show what this machine has and what would fail on it"

SECRETS = ("EXPLICIT_SIGNING_KEY",)
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
SHOWN_FAULTS = 4
SHOWN_WIDTH = 300
GIB = 2**30
# A plan that asks for nothing in particular: four workers that prefetch two batches, on rows that fill 4096 tokens of
# Qwen3.5, one GPU per rank. The small one is the embedded default's.
GPU_ROWS = LoaderShape(
    ranks=1,
    workers=4,
    prefetch=2,
    rows_per_batch=4,
    tokens_per_row=4096,
    image_tokens_per_row=2048,
    values_per_image_token=pixel_values_per_token(32),
)
CPU_ROWS = replace(GPU_ROWS, rows_per_batch=16, tokens_per_row=128, image_tokens_per_row=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """Everything that was found out."""

    inventory: Inventory | NvmlUnavailable
    visible: VisibleDevices
    machine: dict[str, Any]
    limits: dict[str, int | None]
    disk: dict[str, Any]
    image: dict[str, Any]
    variables: dict[str, str]
    lock: str
    cpu_faults: list[Fault]
    gpu_faults: list[Fault]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Look at the machine and print what was found.

    Returns:
        `ExitCode.DONE` if some plan could run here, else the code that a CPU plan would end with.
    """
    findings = _examine()
    runnable = not findings.cpu_faults or not findings.gpu_faults
    code = ExitCode.DONE if runnable else exit_code_of(findings.cpu_faults)
    if arguments.json:
        print(json.dumps(_to_json(findings, code), ensure_ascii=False), flush=True)
    else:
        print("\n".join(_lines(findings)))
    return code


def _examine() -> _Findings:
    inventory = read_inventory()
    runs = Path(os.environ.get("EXPLICIT_RUNS") or "runs")
    lock, cpu_environment, gpu_environment = _environment_faults()
    common = [
        *code_faults(),
        *check_trackers(os.environ),
        *check_output(runs / "RUN_ID", frozen_config_sha256=None),
    ]
    visible = visible_devices(inventory.gpus if isinstance(inventory, Inventory) else (), os.environ)
    return _Findings(
        inventory=inventory,
        visible=visible,
        machine=measure_hardware(inventory),
        limits=asdict(read_limits()),
        disk=_disk(runs),
        image=_image(),
        variables=_variables(),
        lock=lock,
        cpu_faults=[
            *cpu_environment,
            *check_hardware(_any_hardware("cpu"), inventory=inventory),
            *check_shm(required_shm_bytes(CPU_ROWS, "cpu")),
            *common,
        ],
        gpu_faults=[
            *gpu_environment,
            *check_hardware(_any_hardware("cuda"), inventory=inventory),
            *check_shm(required_shm_bytes(GPU_ROWS, "cuda")),
            *common,
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
        return image_identity()
    except Refusal as refusal:
        return {"problem": "; ".join(str(fault) for fault in refusal.faults)}


def _variables() -> dict[str, str]:
    names = [name for name in SHOWN_VARIABLES if name in os.environ]
    names += sorted(name for name in os.environ if name.startswith("EXPLICIT_"))
    return {name: "(set)" if name in SECRETS else os.environ[name] for name in names}


def _to_json(findings: _Findings, code: ExitCode) -> dict[str, Any]:
    return {
        "ok": code == ExitCode.DONE,
        "exit_code": int(code),
        "faults": [] if code == ExitCode.DONE else [fault.to_json() for fault in findings.cpu_faults],
        "python": platform.python_version(),
        "lock": findings.lock,
        "machine": findings.machine,
        "limits": findings.limits,
        "disk": findings.disk,
        "image": findings.image,
        "variables": findings.variables,
        "visible_gpus": [gpu.uuid for gpu in findings.visible.gpus],
        "notes": list(_notes(findings)),
        "would_fail": {
            "cpu": [fault.to_json() for fault in findings.cpu_faults],
            "cuda": [fault.to_json() for fault in findings.gpu_faults],
        },
    }


def _notes(findings: _Findings) -> Iterator[str]:
    """Yield what stops no plan by itself, and yet explains failures."""
    yield from findings.visible.notes
    open_files = findings.limits["open_files"]
    if open_files is not None and open_files < FEW_OPEN_FILES:
        yield f"only {open_files} open files are allowed: loader workers need more (ulimit -n, docker --ulimit nofile)"
    if len(findings.visible.gpus) > 1 and findings.limits["locked_memory_bytes"] is not None:
        yield "locked memory is limited: NCCL may fail to register buffers (docker --ulimit memlock=-1)"
    if findings.variables.get("NVIDIA_VISIBLE_DEVICES") in {"void", "none"}:
        yield "NVIDIA_VISIBLE_DEVICES hides all GPUs from this container"


def _lines(findings: _Findings) -> Iterator[str]:
    machine, limits = findings.machine, findings.limits
    cpu, nvidia = machine["cpu"], findings.inventory
    yield _row("python", f"{platform.python_version()} ({sys.executable})")
    yield _row("lock", f"nearest: {findings.lock}")
    yield _row("processor", f"{cpu['model']}, {cpu['usable_cores']} of {cpu['logical_cores']} cores")
    group = _size(limits["cgroup_memory_bytes"])
    yield _row("memory", f"{_size(machine['memory_bytes'])} (control group: {group})")
    yield _row(str(SHARED_MEMORY), _size(machine["shared_memory_bytes"]))
    yield _row("kernel", f"{machine['kernel']}, {machine['libc']}, container runtime: {machine['container_runtime']}")
    open_files, processes = (limits[name] or "unlimited" for name in ("open_files", "processes"))
    locked = _size(limits["locked_memory_bytes"])
    yield _row("limits", f"open files {open_files}, processes {processes}, locked memory {locked}")
    disk = findings.disk
    space = disk.get("problem") or f"{_size(disk['free_bytes'])} free of {_size(disk['total_bytes'])}"
    yield _row("disk", f"{space} at {disk['folder']}")
    yield from _gpu_lines(nvidia, findings.visible)
    yield from _image_lines(findings.image)
    for name, value in findings.variables.items():
        yield _row("variable", f"{name}={value}")
    for note in _notes(findings):
        yield _row("note", note)
    yield ""
    yield from _verdict("a CPU plan", findings.cpu_faults)
    yield from _verdict("a GPU plan", findings.gpu_faults)


def _image_lines(image: dict[str, Any]) -> Iterator[str]:
    if "problem" in image:
        yield _row("image", image["problem"].splitlines()[0])
        return
    baked = image["baked_in"]
    yield _row("image", "not in an image" if baked is None else json.dumps(baked, ensure_ascii=False))
    known = {kind: digest for kind, digest in image["digests"].items() if digest["value"]}
    for kind, digest in known.items():
        yield _row("image digest", f"{kind} {digest['value']} ({digest['known_by']})")
    if baked and not known:
        yield _row("image digest", f"undeclared ({DIGEST_VARIABLE})")


def _gpu_lines(inventory: Inventory | NvmlUnavailable, visible: VisibleDevices) -> Iterator[str]:
    if isinstance(inventory, NvmlUnavailable):
        yield _row("GPUs", inventory.reason)
        return
    yield _row("driver", f"{inventory.driver_version}, serves CUDA {inventory.cuda_driver_version}")
    yield _row("GPUs", f"{len(visible.gpus)} visible of {len(inventory.gpus)}")
    for gpu in inventory.gpus:
        hidden = "" if gpu in visible.gpus else " - hidden by CUDA_VISIBLE_DEVICES"
        yield _row("", f"{gpu} {gpu.uuid}{hidden}")


def _verdict(what: str, faults: list[Fault]) -> Iterator[str]:
    if not faults:
        yield f"{what} could start here"
        return
    yield f"{what} would be refused here ({len(faults)} faults, exit code {int(exit_code_of(faults))}):"
    for fault in faults[:SHOWN_FAULTS]:
        for line in str(fault).splitlines():
            yield f"  {line}" if len(line) <= SHOWN_WIDTH else f"  {line[:SHOWN_WIDTH]}…"
    if len(faults) > SHOWN_FAULTS:
        yield f"  … and {len(faults) - SHOWN_FAULTS} more (el doctor --json shows all)"


def _row(label: str, text: str) -> str:
    return f"{label:<14}{text}"


def _size(size: int | str | None) -> str:
    if size is None:
        return "unlimited"
    return size if isinstance(size, str) else f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.1f} MiB"
