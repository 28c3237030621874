"""The checkpoint folders of a run: which are complete, which are moved aside, which are removed.

A folder without its mark (`explicit_learning.rundir.checkpoint_mark`) is half-written: it is moved aside and reported,
never resumed from. A folder whose mark has another step than its name was renamed by hand: it is refused before a run
goes on, and never removed.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from explicit_learning.errors import Refusal
from explicit_learning.files.atomic import TEMPORARY_PREFIX, fsync_folder
from explicit_learning.rundir.checkpoint_mark import read_mark
from explicit_learning.rundir.layout import CHECKPOINT_MARK, SET_ASIDE, checkpoint_name, step_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "complete_checkpoints",
    "newest_complete",
    "renamed_checkpoints",
    "rotate_checkpoints",
    "set_aside_folder",
    "set_aside_incomplete",
]


def complete_checkpoints(run: Path) -> list[str]:
    """Return the names of a run's complete checkpoints, by step."""
    return [name for name in _checkpoints(run) if (run / name / CHECKPOINT_MARK).is_file()]


def newest_complete(run: Path) -> str | None:
    """Return the name of a run's newest complete checkpoint, or ``None``; `verify_checkpoint` looks at its files."""
    return next(reversed(complete_checkpoints(run)), None)


def set_aside_incomplete(run: Path) -> list[str]:
    """Move half-written checkpoints into ``set-aside/``, and return where they are, relative to the run directory.

    Raises:
        OSError: If a folder cannot be moved.
    """
    complete = set(complete_checkpoints(run))
    return [set_aside_folder(run, name) for name in _checkpoints(run) if name not in complete]


def set_aside_folder(run: Path, name: str) -> str:
    """Move a folder of a run into ``set-aside/`` under a free name, and return its new relative path.

    Raises:
        OSError: If it cannot be moved.
    """
    target = run / SET_ASIDE
    target.mkdir(exist_ok=True)
    number = 1 + sum(1 for _ in target.glob(f"{name}.*"))
    (run / name).rename(target / f"{name}.{number:04d}")
    fsync_folder(target)
    fsync_folder(run)
    return f"{SET_ASIDE}/{name}.{number:04d}"


def renamed_checkpoints(run: Path) -> dict[str, str]:
    """Return the complete checkpoints whose mark names another step than the folder: the folder's name to the mark's.

    A mark that cannot be read names nothing; whoever resumes from that checkpoint explains it.
    """
    marked = {name: _marked_name(run / name) for name in complete_checkpoints(run)}
    return {name: right for name, right in marked.items() if right not in {None, name}}


def _marked_name(folder: Path) -> str | None:
    """Return the name that a checkpoint's mark gives it; ``None`` if the mark cannot be read."""
    try:
        return checkpoint_name(read_mark(folder).step)
    except Refusal:
        return None


def rotate_checkpoints(run: Path, *, keep: int, protected: Iterable[str] = ()) -> list[str]:
    """Remove the oldest complete checkpoints beyond a number and return their names. Call it after sealing a new one.

    A folder is renamed before it is removed, so that a kill in between leaves no half checkpoint under its name. One
    whose own mark does not name it stays, and does not count.

    Args:
        run: The run directory.
        keep: How many to keep, at least 1: the newest complete checkpoint is never removed.
        protected: Names that stay, and do not count.

    Raises:
        ValueError: If ``keep`` is below 1.
        OSError: If a folder cannot be removed.
    """
    if keep < 1:
        raise ValueError("the newest complete checkpoint is never removed")
    stay = set(protected)
    own = [name for name in complete_checkpoints(run) if _marked_name(run / name) == name]
    surplus = [name for name in own if name not in stay][:-keep]
    for name in surplus:
        doomed = run / f"{TEMPORARY_PREFIX}removed-{name}"
        shutil.rmtree(doomed, ignore_errors=True)
        (run / name).rename(doomed)
        fsync_folder(run)
        shutil.rmtree(doomed)
    return surplus


def _checkpoints(run: Path) -> list[str]:
    names = [path.name for path in run.iterdir() if path.is_dir() and step_of(path.name) is not None]
    return sorted(names, key=lambda name: step_of(name) or 0)
