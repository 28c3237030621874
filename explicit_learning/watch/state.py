"""What a run's files say now, read as they grow: nothing is locked, and nothing is read twice."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from explicit_learning.accounting.binding import log_file
from explicit_learning.accounting.frontier import RankFrontiers
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.typed_json import read_document
from explicit_learning.plan.reading import load_plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoints import newest_complete
from explicit_learning.rundir.run_manifest import read_run_manifest
from explicit_learning.watch.tail import Follower, last_line

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.plan.typed_plan import Plan

__all__ = ["ENDED", "RankState", "RunWatcher", "WatchState"]

CONTEXT = Context(gate="watch", exit_code=ExitCode.USAGE)
# Statuses of a run manifest after which nothing more is written.
ENDED = frozenset({"completed", "budget_exhausted"})
RANK_LINE = re.compile(rb"=== launch \S+ .* rank (\d+) of (\d+) .* pid (\d+)")
EVENTS_HELD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """A rank.

    Attributes:
        rank: Its number.
        completions: Completions in its ledger; ``None`` for an SFT arm.
        tokens: Their tokens.
        pid: Its process in this launch, as its log names it; ``None`` if it has no log yet.
        resident_bytes: Memory of that process, if it runs on this machine. Unit: bytes.
    """

    rank: int
    completions: int | None = None
    tokens: int | None = None
    pid: int | None = None
    resident_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """A run at a moment.

    Attributes:
        run_id: Its id.
        arm: Its arm.
        status: How far it has come, by its manifest; ``None`` if there is none yet.
        step: Optimizer steps that are logged.
        steps: Planned steps.
        metrics: The newest row of its metrics.
        tokens: Tokens sampled so far; ``None`` for an SFT arm.
        budget: Their ceiling; ``None`` likewise.
        checkpoint: Step of the newest complete checkpoint.
        launches: Launches so far.
        exit_code: How the newest launch ended; ``None`` while it has not said so.
        is_running: Whether a process of the newest launch runs on this machine.
        seconds_per_step: Mean over the steps of this launch that were seen; ``None`` before two of them.
        quiet_seconds: Seconds since a file of the run changed.
        ranks: Its ranks.
    """

    run_id: str
    arm: str
    status: str | None
    step: int
    steps: int
    metrics: dict[str, Any]
    tokens: int | None
    budget: int | None
    checkpoint: int | None
    launches: int
    exit_code: int | None
    is_running: bool
    seconds_per_step: float | None
    quiet_seconds: float
    ranks: tuple[RankState, ...]

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is written unless somebody starts the run again."""
        return self.status in ENDED or (self.exit_code is not None and not self.is_running)

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the time to the last step, at the pace so far; ``None`` without a pace, and after the end."""
        if self.seconds_per_step is None or self.has_ended:
            return None
        return self.seconds_per_step * (self.steps - self.step)


@dataclass(slots=True, kw_only=True)
class _Rank:
    """What was read of a rank so far."""

    ledger: Follower
    log: Follower
    state: RankState


@dataclass(slots=True, kw_only=True)
class _Launch:
    """What the event log says of launches."""

    count: int = 0
    exit_code: int | None = None
    checkpoints: list[tuple[float, int]] = field(default_factory=list)


class RunWatcher:
    """Reads a run again and again; each time it reads only what is new."""

    def __init__(self, folder: Path) -> None:
        """Take a run directory.

        Raises:
            Refusal: If the folder is there and is not a run directory, or its plan is not in order.
        """
        self._folder = folder
        self._plan: Plan | None = None
        self._ranks: list[_Rank] = []
        self._events = Follower(folder / layout.EVENTS)
        self._launch = _Launch()
        self._seen: list[tuple[float, int]] = []
        if folder.exists() and not folder.is_dir():
            raise CONTEXT.at(folder).refusal(
                found="a file", expected="a run directory", fix="name the folder that el run --out wrote"
            )

    def poll(self, *, now: float) -> WatchState | None:
        """Return the run as it is now; ``None`` while it has no plan yet.

        Args:
            now: The time. Unit: seconds since the epoch.

        Raises:
            Refusal: If the plan is not in order, or the folder holds other files and no plan.
        """
        plan = self._read_plan()
        if plan is None:
            return None
        self._read_events()
        row = _row(last_line(self._folder / layout.METRICS))
        step = row.get("step", 0) if isinstance(row.get("step"), int) else 0
        self._note_pace(now, step)
        ranks = tuple(self._read_rank(rank) for rank in self._ranks)
        return WatchState(
            run_id=plan.run_id,
            arm=plan.arm,
            status=self._status(),
            step=step,
            steps=plan.optimisation.max_steps,
            metrics=row,
            tokens=sum(rank.tokens or 0 for rank in ranks) if plan.samples else None,
            budget=plan.budget.max_completion_tokens_per_run,
            checkpoint=self._checkpoint(),
            launches=self._launch.count,
            exit_code=self._launch.exit_code,
            is_running=any(rank.resident_bytes is not None for rank in ranks),
            seconds_per_step=self._pace(),
            quiet_seconds=max(0.0, now - self._last_change()),
            ranks=ranks,
        )

    def _read_plan(self) -> Plan | None:
        if self._plan is not None:
            return self._plan
        file = self._folder / layout.PLAN
        if not file.is_file():
            if self._folder.is_dir() and any(layout.belongs_to_run(path.name) for path in self._folder.iterdir()):
                raise CONTEXT.at(self._folder).refusal(
                    found=f"a folder without {layout.PLAN}",
                    expected="a run directory",
                    fix="name the folder that el run --out wrote",
                )
            return None
        self._plan = plan = load_plan(file)
        newest = newest_complete(self._folder)
        for rank in range(plan.hardware.world_size):
            start = _frontier(self._folder, newest, rank) if plan.samples else None
            offset, rows, tokens = (0, 0, 0) if start is None else (start.offset, start.rows, start.tokens)
            counted = {"completions": rows, "tokens": tokens} if plan.samples else {}
            self._ranks.append(
                _Rank(
                    ledger=Follower(self._folder / log_file("ledger", rank), offset=offset),
                    log=Follower(self._folder / layout.rank_log(rank)),
                    state=RankState(rank=rank, **counted),
                )
            )
        return plan

    def _status(self) -> str | None:
        try:
            return read_run_manifest(self._folder).status
        except Refusal:
            return None

    def _checkpoint(self) -> int | None:
        try:
            name = newest_complete(self._folder)
        except OSError:
            return None
        return None if name is None else layout.step_of(name)

    def _read_events(self) -> None:
        for line in self._events.lines():
            event = _row(line)
            data = event.get("data")
            if not isinstance(data, dict):
                continue
            if event.get("kind") == "launch":
                self._launch.count += 1
                self._launch.exit_code = None
                self._launch.checkpoints.clear()
                self._seen.clear()
            elif event.get("kind") == "exit" and isinstance(data.get("exit_code"), int):
                self._launch.exit_code = data["exit_code"]
            elif event.get("kind") == "checkpoint" and isinstance(data.get("optimizer_step"), int):
                self._launch.checkpoints.append((_seconds(event.get("time")), data["optimizer_step"]))
                del self._launch.checkpoints[:-EVENTS_HELD]

    def _read_rank(self, rank: _Rank) -> RankState:
        state = rank.state
        for line in rank.log.lines():
            if (found := RANK_LINE.match(line)) and int(found[1]) == state.rank:
                state = replace(state, pid=int(found[3]))
        if state.completions is not None:
            completions, tokens = state.completions, state.tokens or 0
            for line in rank.ledger.lines():
                count = _row(line).get("token_count")
                if isinstance(count, int):
                    completions, tokens = completions + 1, tokens + count
            state = replace(state, completions=completions, tokens=tokens)
        rank.state = state
        return replace(state, resident_bytes=_resident(state.pid))

    def _note_pace(self, now: float, step: int) -> None:
        if step and (not self._seen or self._seen[-1][1] != step):
            self._seen.append((now, step))
            del self._seen[1:-EVENTS_HELD]

    def _pace(self) -> float | None:
        """Return seconds a step: between checkpoints of this launch, else between the steps that were seen."""
        for points in (self._launch.checkpoints, self._seen):
            if len(points) > 1 and points[-1][1] > points[0][1]:
                return (points[-1][0] - points[0][0]) / (points[-1][1] - points[0][1])
        return None

    def _last_change(self) -> float:
        changed = 0.0
        for name in (layout.METRICS, layout.EVENTS, layout.rank_log(0), layout.launcher_log()):
            try:
                changed = max(changed, (self._folder / name).stat().st_mtime)
            except OSError:
                continue
        return changed


def _row(line: bytes | None) -> dict[str, Any]:
    """Return a line's JSON object; an empty one if it is none."""
    try:
        value = json.loads(line) if line else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _seconds(time: object) -> float:
    try:
        return datetime.fromisoformat(str(time)).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def _frontier(folder: Path, checkpoint: str | None, rank: int) -> Any:  # noqa: ANN401 - a frontier, or None
    """Return where a rank's ledger stood at a checkpoint, so that a long one is not read from its beginning."""
    if checkpoint is None:
        return None
    file = folder / checkpoint / layout.frontiers_file(rank)
    try:
        return read_document(file, RankFrontiers, gate=CONTEXT.gate).ledger
    except (Refusal, OSError):
        return None


def _resident(pid: int | None) -> int | None:
    """Return the memory of a rank's process; ``None`` if it does not run on this machine."""
    import psutil

    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        if "explicit_learning.training" not in process.cmdline():
            return None  # another process has the number, or the rank runs on another machine
        return int(process.memory_info().rss)
    except psutil.Error:
        return None
