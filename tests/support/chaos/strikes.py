"""Ways to end a run at a chosen moment, and the moments: all recognised by the files that a run writes.

The program is not changed for it. A moment is recognised when the kernel reports the change that marks
it; a strike that came too late is found out afterwards, from what is left, and tried again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from explicit_learning.rundir.checkpoints import complete_checkpoints
from explicit_learning.rundir.layout import CHECKPOINT_MARK, step_of
from tests.support.chaos.launching import Launch, kill_all, signal_all, wait_until_gone
from tests.support.chaos.watching import Change, Tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "CODES",
    "ENDS",
    "MARKER",
    "POINTS",
    "WAYS",
    "Point",
    "Strike",
    "Way",
    "is_possible",
    "launched_until",
    "strike",
]

Point = Literal["before first checkpoint", "mid-step", "mid-append", "mid-checkpoint", "before marker", "after marker"]
Way = Literal["rank", "launcher", "tree", "disk full"]
# In the order in which a run meets them.
POINTS: tuple[Point, ...] = (
    "before first checkpoint",
    "mid-step",
    "mid-append",
    "mid-checkpoint",
    "before marker",
    "after marker",
)
# Behind the last step: no rank is sure to be left, and no step in which a disk could fill up.
ENDS: tuple[Point, ...] = ("before marker", "after marker")
WAYS: tuple[Way, ...] = ("rank", "launcher", "tree", "disk full")
# How a launch must end: a killed rank is a failure, a killed launcher ends by its signal, a full disk is an I/O error.
CODES: dict[Way, int] = {"rank": 70, "launcher": -9, "tree": -9, "disk full": 74}

MARKER = "training-complete.json"
ADAPTER = "final-adapter"


def is_possible(point: Point, way: Way) -> bool:
    """Return whether a way exists at a point."""
    return point not in ENDS or way in {"launcher", "tree"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """What is to happen.

    Attributes:
        point: When.
        way: How.
        delay: Seconds to wait at the point, for moments that no file marks.
        seed: Of the choices that are left: which rank, which file of a checkpoint, where a line is torn.
    """

    point: Point
    way: Way
    delay: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.way} at {self.point}"


class _Moment:
    """Finds out from changes whether a launch that has just started reached a point."""

    def __init__(self, wanted: Strike, run: Path, steps: int) -> None:
        self._wanted, self._run, self._steps = wanted, run, steps
        self._sizes = {path: path.stat().st_size for path in self._growing()}
        self._known = set(complete_checkpoints(run)) if run.is_dir() else set()
        self._files = random.Random(wanted.seed).randint(1, 5)  # noqa: S311 - a test's choice

    def _growing(self) -> list[Path]:
        return [*self._run.glob("accounting/rank-*/*.jsonl"), *self._run.glob("metrics.jsonl")]

    def is_now(self, change: Change) -> bool:
        """Return whether a change marks the point."""
        if self._wanted.point in ENDS:
            return change == Change(MARKER if self._wanted.point == "after marker" else ADAPTER, "moved")
        if self._wanted.point == "mid-checkpoint":
            return self._is_in_new_checkpoint(change)
        path = self._run / change.path
        if not (path.suffix == ".jsonl" and change.kind == "modified" and self._grew(path)):
            return False
        if self._wanted.point == "mid-append":
            return path.name == ("ledger.jsonl" if (self._run / "accounting").is_dir() else "metrics.jsonl")
        begun = bool(complete_checkpoints(self._run)) == (self._wanted.point == "mid-step")
        return begun and path.name == "metrics.jsonl" and _rows(path) < self._steps

    def _is_in_new_checkpoint(self, change: Change) -> bool:
        folder, _, file = change.path.partition("/")
        if not file or step_of(folder) is None or folder in self._known:
            return False
        self._files -= 1
        return self._files <= 0

    def _grew(self, path: Path) -> bool:
        """Whether a file is longer than when it was last looked at: a resume shortens files, or writes them again."""
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return False
        before, self._sizes[path] = self._sizes.get(path, size), size
        return size > before


@contextmanager
def launched_until(wanted: Strike, plan: Path, run: Path, *options: str, steps: int) -> Iterator[tuple[Launch, bool]]:
    """Start a run and wait for a point; yield the launch, and whether the point was reached before it ended."""
    run.mkdir(parents=True, exist_ok=True)
    moment = _Moment(wanted, run, steps)
    with Tree(run) as tree, Launch.of(plan, run, *options) as launch:
        reached = False
        while not reached and launch.process.poll() is None:
            reached = any(moment.is_now(change) for change in tree.changes(0.5))
        if reached and wanted.delay:
            time.sleep(wanted.delay)
        yield launch, reached


def strike(wanted: Strike, plan: Path, run: Path, *, steps: int, disk: Path | None = None) -> tuple[bool, int]:
    """Start a run and end it at a point.

    Args:
        wanted: When and how.
        plan: The plan.
        run: The run directory.
        steps: Steps that the plan has.
        disk: Folder of the small file system that the run is on, for a full disk.

    Returns:
        Whether the point was hit, and the launch's exit code.
    """
    chance = random.Random(wanted.seed)  # noqa: S311 - a test's choice
    with launched_until(wanted, plan, run, steps=steps) as (launch, reached):
        if not reached:
            return False, launch.wait()
        family = launch.family()
        if wanted.way == "disk full":
            assert disk is not None, "a full disk needs a small one"
            signal_all(family, signal.SIGSTOP)  # filling takes longer than a step on some machines
            with _full(disk):
                signal_all(family, signal.SIGCONT)
                code = launch.wait()
        else:
            ranks = launch.ranks()
            victims = {
                "rank": [chance.choice(ranks)] if ranks else [],
                "launcher": [launch.process.pid],
                "tree": family,
            }[wanted.way]
            kill_all(victims)
            code = launch.wait()
        left = wait_until_gone(family)
        assert left == [], f"processes outlive {wanted}"
    hit = _was_hit(wanted.point, run)
    if hit and wanted.point == "mid-append" and wanted.way != "disk full":
        _tear(run, chance)
    return hit, code


def _was_hit(point: Point, run: Path) -> bool:
    folders = [path for path in run.iterdir() if step_of(path.name) is not None]
    if point == "before first checkpoint":
        return not complete_checkpoints(run)
    if point == "mid-checkpoint":
        return any(not (folder / CHECKPOINT_MARK).exists() for folder in folders)
    if point == "after marker":
        status = json.loads((run / "run-manifest.json").read_bytes())["status"]
        return (run / MARKER).exists() and status != "completed"
    return not (run / MARKER).exists() and (point != "before marker" or (run / ADAPTER).exists())


def _rows(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _tear(run: Path, chance: random.Random) -> None:
    """Cut a growing file within its last rows, as a kill inside ``write`` does; never before the last checkpoint."""
    last = max((step_of(name) or 0 for name in complete_checkpoints(run)), default=0)
    candidates = []
    for path in run.glob("accounting/rank-*/*.jsonl"):
        at = _frontier(run, path, last)
        if path.stat().st_size > at:
            candidates.append((path, at))
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True) if metrics.exists() else []
    if not candidates and lines and json.loads(lines[-1])["step"] > last:
        candidates.append((metrics, sum(map(len, lines[:-1]))))
    if candidates:
        path, at = chance.choice(sorted(candidates))
        os.truncate(path, chance.randint(at, path.stat().st_size - 1))


def _frontier(run: Path, path: Path, step: int) -> int:
    """Return how much of a file the newest checkpoint counts; without one, its header line."""
    if not step:
        return path.read_bytes().find(b"\n") + 1
    mark = json.loads((run / f"checkpoint-{step}" / CHECKPOINT_MARK).read_bytes())
    name = path.relative_to(run).as_posix()
    return next(
        entry[kind]["offset"]
        for entry in mark["frontiers"]
        for kind in ("ledger", "trace")
        if entry[kind]["file"] == name
    )


@contextmanager
def _full(disk: Path) -> Iterator[None]:
    """Fill a file system to its last block."""
    ballast = disk / "ballast"
    try:
        with ballast.open("wb", buffering=0) as stream:
            free = os.statvfs(disk)
            piece, filled = free.f_bavail * free.f_frsize, 0
            while piece >= free.f_frsize:  # quickly, and although the run writes at the same time
                try:
                    os.posix_fallocate(stream.fileno(), filled, piece)
                    filled += piece
                except OSError:
                    piece //= 2
        with ballast.open("ab", buffering=0) as stream, suppress(OSError):
            while True:
                stream.write(bytes(4096))
        yield
    finally:
        ballast.unlink()
