"""A run as its page needs it: documents, verification, metrics, evaluations and sample completions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Refusal
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.os_errors import read_fault
from explicit_learning.report.compare.reading import finished_evaluations
from explicit_learning.report.run.samples import samples_of
from explicit_learning.report.run.series import bucketed
from explicit_learning.rundir import layout
from explicit_learning.rundir.events import read_events
from explicit_learning.verify.diff.rows import metrics_rows
from explicit_learning.verify.diff.run_files import read_run_files
from explicit_learning.verify.opening import open_run
from explicit_learning.verify.reachable import Reachable, reach
from explicit_learning.verify.verifying import verify_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.report.compare.reading import Found
    from explicit_learning.report.run.samples import Sample
    from explicit_learning.report.run.series import Metrics
    from explicit_learning.rundir.events import Event
    from explicit_learning.verify.diff.run_files import RunFiles
    from explicit_learning.verify.verifying import Verification

__all__ = ["Pace", "ReportedRun", "read_reported_run"]

GATE = "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of a step between two checkpoints of one launch, by the clock of the event log.

    Attributes:
        step: The step of the later checkpoint.
        seconds: Seconds of each step between the two.
    """

    step: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """A run.

    Attributes:
        name: What it is called on the page: its id, with a number where two runs have one id.
        place: Its folder or archive, as it was named.
        files: Its documents.
        verification: What verification found.
        metrics: Its logged metrics.
        pace: Seconds a step, between checkpoints.
        evaluations: Its finished evaluations.
        samples: Completions of its traces by kind: best, worst, drawn.
        rewards: Number of completions by reward.
        remarks: What could not be read, in words.
    """

    name: str
    place: str
    files: RunFiles
    verification: Verification
    metrics: Metrics
    pace: tuple[Pace, ...]
    evaluations: tuple[Found, ...]
    samples: dict[str, list[Sample]]
    rewards: dict[str, int]
    remarks: tuple[str, ...]


def read_reported_run(path: Path, *, with_samples: bool) -> ReportedRun:
    """Read and verify a run.

    Args:
        path: The run directory, or an archive of a run.
        with_samples: Whether to read its traces for completions to show.

    Raises:
        Refusal: If it is not a run, or its plan, manifest, marker or launches cannot be read.
    """
    try:
        tree = open_run(path)
        files = read_run_files(tree)
        verification = verify_run(tree)
        events, _ = read_events(tree)
    except OSError as error:
        raise Refusal(read_fault(error, Path(error.filename or path), gate=GATE)) from None
    remarks: list[str] = []
    samples: dict[str, list[Sample]] = {}
    rewards: dict[str, int] = {}
    if with_samples and files.plan.samples:
        reachable = _reachable(files, events)
        try:
            samples, rewards = samples_of(tree, files.plan, reachable, torn_end=files.torn_end)
        except Refusal as refusal:
            remarks.append(f"completions are not shown: {escaped(refusal.faults[0].found)}")
    return ReportedRun(
        name=escaped(files.plan.run_id),
        place=escaped(str(path)),
        files=files,
        verification=verification,
        metrics=_metrics(files, remarks),
        pace=tuple(_pace(events)),
        evaluations=tuple(finished_evaluations(tree)),
        samples=samples,
        rewards=rewards,
        remarks=tuple(remarks),
    )


def _reachable(files: RunFiles, events: list[Event]) -> Reachable:
    try:
        return reach(files.plan, events, None)
    except (Refusal, OSError):
        return Reachable()


def _metrics(files: RunFiles, remarks: list[str]) -> Metrics:
    """Return a run's metrics, as far as they can be read."""
    steps = files.plan.optimisation.max_steps
    if not files.has_metrics:
        return bucketed((), steps=steps)

    def rows() -> Iterator[tuple[int, dict[str, float | None]]]:
        try:
            for row in metrics_rows(files.tree, torn_end=files.torn_end):
                yield row.step, {name: value for name, value in row.values.items() if name != "step"}
        except Refusal as refusal:
            fault = refusal.faults[0]
            remarks.append(f"{layout.METRICS} is shown up to {escaped(fault.file or '')}: {escaped(fault.found)}")

    return bucketed(rows(), steps=steps)


def _pace(events: list[Event]) -> Iterator[Pace]:
    """Yield the seconds of a step between checkpoints that follow one another in one launch."""
    from datetime import datetime

    before: tuple[int, datetime] | None = None
    for event in events:
        if event.kind in {"launch", "exit"}:
            before = None
        elif event.kind == "checkpoint" and isinstance(step := event.data.get("optimizer_step"), int):
            time = datetime.fromisoformat(event.time)
            if before is not None and step > before[0]:
                yield Pace(step=step, seconds=(time - before[1]).total_seconds() / (step - before[0]))
            before = step, time
