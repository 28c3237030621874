"""The folder in which a dataset is built: beside the one that it becomes, and never taken for it.

``DIR.building`` holds the record of the build and the dataset as far as it is. At the end everything is flushed to the
disk and the dataset is renamed to ``DIR``: whoever sees ``DIR`` sees all of it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from explicit_learning.data.build.state import OUTPUT, State
from explicit_learning.errors import ExitCode
from explicit_learning.files.atomic import fsync_file, fsync_folder, require_free
from explicit_learning.files.progress import progress

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BuildingFolder"]

SUFFIX = ".building"


class BuildingFolder:
    """A building folder; one process at a time has it open.

    Attributes:
        out: The folder that the dataset becomes.
        path: The building folder.
        root: The dataset as far as it is.
        state: The record.
    """

    def __init__(self, out: Path) -> None:
        """Open the building folder of a dataset, or make it.

        Raises:
            FileExistsError: If the dataset's folder has something in it.
            Refusal: If another build has it open, or its record is damaged.
            OSError: If it cannot be made.
        """
        self.out = out
        self.path = out.with_name(out.name + SUFFIX)
        self.root = self.path / "dataset"
        if not self.path.is_dir():
            require_free(out)
        self.path.mkdir(parents=True, exist_ok=True)
        self.state = State(self.path / "state.sqlite")

    @property
    def is_published(self) -> bool:
        """Whether the dataset has its name already: the process ended before it had removed the building folder."""
        return bool(self.state.get("publishing")) and not self.root.exists()

    def prepare(self) -> None:
        """Make the dataset's folder; or remove what is not noted, such as a half-written file, and compare what is.

        Raises:
            FileExistsError: If the folder that the dataset becomes has something in it.
            Refusal: If a file that is noted is missing, or has another size.
            OSError: If nothing can be written.
        """
        require_free(self.out)
        self.root.mkdir(exist_ok=True)
        for path in self.root.rglob("*"):
            name = path.relative_to(self.root).as_posix()
            if path.is_file() and self.state.one("SELECT 1 FROM files WHERE path = ?", name) is None:
                path.unlink()
        for name, size in self.state.rows("SELECT path, bytes FROM files"):
            place = self.root / name
            found = place.stat().st_size if place.is_file() else None
            if found != size:
                raise OUTPUT.at(place).refusal(
                    found="no such file" if found is None else f"{found:,} bytes",
                    expected=f"the {size:,} bytes that the build wrote",
                    fix=f"remove {self.path}, and run the same command again",
                    exit_code=ExitCode.IO,
                )

    def publish(self) -> None:
        """Flush the dataset to the disk, and rename it to what it becomes.

        Raises:
            FileExistsError: If something is there by now.
            OSError: If the disk is full or failing.
        """
        require_free(self.out)
        with self.state.transaction():
            self.state.set("publishing", value=True)
        folders = [self.root, *(path for path in self.root.rglob("*") if path.is_dir())]
        with progress("flushing folders", len(folders), "folders") as advance:
            for file in (path for path in self.root.iterdir() if path.is_file()):
                fsync_file(file)
            for folder in folders:
                fsync_folder(folder)
                advance(1)
        self.root.rename(self.out)
        fsync_folder(self.out.parent)

    def remove(self) -> None:
        """Remove the building folder."""
        self.state.close()
        shutil.rmtree(self.path)

    def close(self) -> None:
        """Let go of the building folder; the same command goes on from here."""
        self.state.close()
