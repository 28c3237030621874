"""What decides numbers and differs between two launches of one run.

A resumed run equals an uninterrupted one only on the same libraries and the same kind of hardware: a CPU's instruction
sets, or a GPU's model, choose the kernels that compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.errors import Fault

__all__ = ["resume_changes"]

FIX = "resume where the run was started, or add --accept-changes: the record then says that the launches differ"
NOT_THERE = "not installed"
CONTEXT = Context(gate="resume", fix=FIX)


def resume_changes(previous: Mapping[str, Any], now: Mapping[str, Any], *, accelerator: str) -> list[Fault]:
    """Return what differs between the run's last launch and this one, and can change numbers.

    Args:
        previous: ``hardware`` of the last launch, as `measure_hardware` returns it, and its ``libraries``, versions by
            name.
        now: The same of this launch.
        accelerator: The plan's, ``cpu`` or ``cuda``.

    Returns:
        Faults with exit code 69 for hardware and 78 for libraries.
    """
    hardware = _hardware(previous, accelerator), _hardware(now, accelerator)
    libraries = _libraries(previous), _libraries(now)
    return [
        CONTEXT.fault(pointer=name, found=new, expected=f"{old}, as in the last launch", exit_code=code)
        for (before, after), code in ((hardware, ExitCode.HARDWARE), (libraries, ExitCode.ENVIRONMENT))
        for name in sorted(before.keys() | after.keys())
        if (old := before.get(name, NOT_THERE)) != (new := after.get(name, NOT_THERE))
    ]


def _hardware(launch: Mapping[str, Any], accelerator: str) -> dict[str, str]:
    """Return what of a launch's hardware decides numbers, as text, by place in the record."""
    hardware = launch["hardware"]
    cpu = hardware["cpu"]
    if accelerator == "cpu":
        return {
            "/hardware/cpu/architecture": cpu["architecture"],
            "/hardware/cpu/instruction_sets": " ".join(cpu["instruction_sets"]) or "none",
        }
    models = sorted({gpu["name"] for gpu in hardware["nvidia"]["gpus"]})
    return {"/hardware/cpu/architecture": cpu["architecture"], "/hardware/nvidia/gpus": ", ".join(models) or "no GPU"}


def _libraries(launch: Mapping[str, Any]) -> dict[str, str]:
    return {f"/libraries/{name}": version for name, version in launch["libraries"].items()}
