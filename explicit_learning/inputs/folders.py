"""Gates on the base model and the initial adapter: whole, and unchanged since freezing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.files.hashing import snapshot_sha256
from explicit_learning.model_files.folders import adapter_sha256, adapter_structure, model_structure

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_folder"]


def check_folder(folder: Path, expected: str, *, kind: str) -> list[Fault]:
    """Return what is wrong with the model (``kind="model"``) or adapter (``"adapter"``) folder that a plan names.

    Args:
        folder: The folder.
        expected: The identity frozen in the plan.
        kind: Which of the two it is; also the gate's name.
    """
    structure, identity, pointer = (
        (model_structure, snapshot_sha256, "/model/snapshot_sha256")
        if kind == "model"
        else (adapter_structure, adapter_sha256, "/initial_adapter/sha256")
    )
    if faults := structure(folder):
        return faults
    try:
        found = identity(folder)
    except OSError as error:
        fix = "check the folder's permissions and the disk it lies on"
        text = f"cannot be read: {error.strerror or error}"
        file = str(error.filename or folder)
        return [Fault(gate=kind, file=file, found=text, expected="readable files", fix=fix, exit_code=ExitCode.IO)]
    if found == expected:
        return []
    fix = f"restore the {kind} that was frozen, or freeze the draft again"
    return [Fault(gate=kind, file=str(folder), pointer=pointer, found=f"content {found}", expected=expected, fix=fix)]
