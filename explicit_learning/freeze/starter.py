"""A folder to start from: drafts, an experiment, a sample source, the tiny model, and a page that says what to do.

It holds everything that its drafts name, so that it can be moved, mounted into a container, and put under version
control.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from explicit_learning.errors import Refusal
from explicit_learning.files.atomic import new_folder
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.resources import ASSETS, EXAMPLES, PROMPTS, SCHEMAS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_starter"]

SAMPLE_SEED = 0


def write_starter(folder: Path) -> None:
    """Write the folder, whole or not at all.

    Raises:
        Refusal: If something is there, or it cannot be written.
    """
    from explicit_learning.data.digits.sample_source import write_sample_source

    try:
        with new_folder(folder.resolve()) as place:
            for file in sorted((EXAMPLES / "starter").iterdir()):
                shutil.copyfile(file, place / file.name)
            shutil.copyfile(PROMPTS / "common_system.txt", place / "system.txt")
            shutil.copytree(ASSETS / "tiny-vlm" / "model", place / "tiny-model", copy_function=shutil.copyfile)
            (place / "schemas").mkdir()
            for name in ("draft", "experiment"):
                shutil.copyfile(SCHEMAS / f"{name}.schema.json", place / "schemas" / f"{name}.schema.json")
            (place / "source").mkdir()
            write_sample_source(place / "source", seed=SAMPLE_SEED)
    except OSError as error:
        raise Refusal(write_fault(error, folder)) from error
