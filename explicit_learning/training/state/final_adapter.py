"""The end product: ``final-adapter/``, which appears whole or not at all."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from explicit_learning.files.atomic import new_folder
from explicit_learning.rundir.layout import FINAL_ADAPTER
from explicit_learning.training.state.adapters import write_adapter_folder

if TYPE_CHECKING:
    from pathlib import Path

    from peft import PeftModel

__all__ = ["write_final_adapter"]


def write_final_adapter(run: Path, model: PeftModel, *, adapter: str, base_name: str) -> None:
    """Write the trained adapter into the run directory.

    A folder from a launch that was killed between this and the completion marker is replaced: the same steps made it.
    """
    target = run / FINAL_ADAPTER
    if target.exists():
        shutil.rmtree(target)
    with new_folder(target) as folder:
        write_adapter_folder(folder, model, adapter=adapter, base_name=base_name)
