"""``el doctor``: what this machine has, and what would fail on it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from explicit_learning.cli.output import add_json_argument, counted_faults, show
from explicit_learning.errors import ExitCode, exit_code_of, json_answer, print_json
from explicit_learning.gates.doctor import examine
from explicit_learning.gates.image import DIGEST_VARIABLE
from explicit_learning.gates.nvml import NvmlUnavailable
from explicit_learning.gates.shm import SHARED_MEMORY

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from explicit_learning.errors import Fault
    from explicit_learning.gates.doctor import Findings
    from explicit_learning.gates.nvml import Inventory
    from explicit_learning.gates.visible import VisibleDevices

__all__ = ["add_arguments", "run"]

SHOWN_FAULTS = 4
SHOWN_WIDTH = 300
GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Look at the machine and print what was found.

    Returns:
        `ExitCode.DONE` if some plan could run here, else the code that a CPU plan would end with.
    """
    findings = examine()
    refused = findings.cpu_faults if findings.gpu_faults else []
    if args.json:
        print_json(json_answer(refused, **_members(findings)))
    else:
        show("\n".join(_lines(findings)))
    return exit_code_of(refused)


def _members(findings: Findings) -> dict[str, Any]:
    return {
        "python": findings.python,
        "lock": findings.lock,
        "machine": findings.machine,
        "limits": findings.limits,
        "disk": findings.disk,
        "image": findings.image,
        "variables": findings.variables,
        "visible_gpus": [gpu.uuid for gpu in findings.visible.gpus],
        "notes": list(findings.notes()),
        "would_fail": {
            "cpu": [fault.to_json() for fault in findings.cpu_faults],
            "cuda": [fault.to_json() for fault in findings.gpu_faults],
        },
    }


def _lines(findings: Findings) -> Iterator[str]:
    machine, limits = findings.machine, findings.limits
    cpu, nvidia = machine["cpu"], findings.inventory
    yield _row("python", f"{findings.python} ({sys.executable})")
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
    for note in findings.notes():
        yield _row("note", note)
    yield ""
    yield from _conclusion("a CPU plan", findings.cpu_faults)
    yield from _conclusion("a GPU plan", findings.gpu_faults)


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


def _conclusion(what: str, faults: list[Fault]) -> Iterator[str]:
    if not faults:
        yield f"{what} could start here"
        return
    yield f"{what} would be refused here ({counted_faults(faults)}, exit code {int(exit_code_of(faults))}):"
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
