"""The checkpoint folders of a run: which are complete, which are moved aside, which are removed.

A folder without its mark (`explicit_learning.rundir.checkpoint_mark`) is half-written: it is moved aside and reported,
never resumed from. A folder whose mark has another step than its name was renamed by hand: it is refused before a run
goes on, and never removed.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.errors import Refusal
from explicit_learning.files.atomic import TEMPORARY_PREFIX, fsync_folder
from explicit_learning.files.progress import say
from explicit_learning.rundir.checkpoint_mark import read_mark
from explicit_learning.rundir.layout import CHECKPOINT_MARK, SET_ASIDE, checkpoint_name, step_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "Rotation",
    "complete_checkpoints",
    "newest_complete",
    "remove",
    "remove_half_written",
    "renamed_checkpoints",
    "rotate_checkpoints",
    "set_aside_folder",
    "set_aside_incomplete",
]

REMOVED_PREFIX = f"{TEMPORARY_PREFIX}removed-"


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


def remove_half_written(run: Path) -> list[str]:
    """Remove files and folders that a kill kept from getting their names: nobody has ever seen them.

    Returns:
        Those that could not be removed, each with the reason.
    """
    left = []
    for path in sorted(run.rglob(f"{TEMPORARY_PREFIX}*")):
        if reason := remove(path):
            left.append(f"{path.relative_to(run).as_posix()}: {reason}")
            say(f"{path} could not be removed ({reason}); the next launch tries again")
    return left


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """What a rotation did.

    Attributes:
        removed: Names of the checkpoints that are gone.
        not_removed: Folders that could not be removed, each with the reason; the next rotation tries again.
    """

    removed: list[str]
    not_removed: list[str]


def rotate_checkpoints(run: Path, *, keep: int, protected: Iterable[str] = ()) -> Rotation:
    """Remove the oldest complete checkpoints beyond a number. Call it after sealing a new one.

    A folder is renamed before it is removed, so that a kill in between leaves no half checkpoint under its name. One
    whose own mark does not name it stays, and does not count. A folder that cannot be removed, as on NFS while one of
    its files is open, is tried again by the next rotation and the next launch: a run does not end because of it.

    Args:
        run: The run directory.
        keep: How many to keep, at least 1: the newest complete checkpoint is never removed.
        protected: Names that stay, and do not count.

    Raises:
        ValueError: If ``keep`` is below 1.
        OSError: If the run directory cannot be read or flushed.
    """
    if keep < 1:
        raise ValueError("the newest complete checkpoint is never removed")
    stay = set(protected)
    own = [name for name in complete_checkpoints(run) if _marked_name(run / name) == name]
    surplus = [name for name in own if name not in stay][:-keep]
    removed, not_removed = [], []
    for name in surplus:
        try:
            (run / name).rename(run / f"{REMOVED_PREFIX}{name}-{secrets.token_hex(4)}")
        except OSError as error:
            not_removed.append(f"{name}: {error.strerror}")
        else:
            removed.append(name)
    fsync_folder(run)
    doomed = sorted(run.glob(f"{REMOVED_PREFIX}*"))
    not_removed += [f"{folder.name}: {reason}" for folder in doomed if (reason := remove(folder))]
    return Rotation(removed=removed, not_removed=not_removed)


def remove(path: Path) -> str | None:
    """Remove a file or folder that nobody needs; return why that is not possible, or ``None`` once it is gone."""
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return None  # another node's gates may remove theirs at the same time
    except OSError as error:
        return error.strerror or str(error)
    return None


def _checkpoints(run: Path) -> list[str]:
    names = [path.name for path in run.iterdir() if path.is_dir() and step_of(path.name) is not None]
    return sorted(names, key=lambda name: step_of(name) or 0)
