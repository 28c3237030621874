"""The committed configurations of Triton kernels (``kernels/``), read in one way by the gates and by the ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import TRITON_CONFIGURATIONS
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault

__all__ = ["read_triton_configurations"]

GATE = "kernels"
FIX = "restore the file as the program ships it (git checkout of the file), or use the image"


def read_triton_configurations(path: Path = TRITON_CONFIGURATIONS) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the configurations by compute capability (``MAJOR.MINOR``), and by the kernel's module and name.

    Each is what `triton.Config` tells apart: ``sizes``, ``num_warps`` and ``num_stages``.

    Args:
        path: The file (``schemas/triton-configurations.schema.json``).

    Raises:
        Refusal: If it is missing, damaged or of another form (78), or cannot be read (74).
    """
    try:
        table: dict[str, dict[str, dict[str, Any]]] = load_json(path, gate=GATE)
    except Refusal as refusal:
        raise Refusal(map(_of_the_program, refusal.faults)) from None
    if faults := validate(table, "triton-configurations", gate=GATE, file=str(path)):
        raise Refusal(map(_of_the_program, faults))
    return table


def _of_the_program(fault: Fault) -> Fault:
    """Return a fault of a file that ships with the program: nobody is to correct it by hand."""
    return replace(fault, fix=FIX, exit_code=ExitCode.ENVIRONMENT) if fault.exit_code == ExitCode.CONTRACT else fault
