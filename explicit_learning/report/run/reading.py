"""A run as its page needs it: documents, verification, metrics, evaluations and sample completions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Refusal
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.os_errors import read_fault
from explicit_learning.report.compare.reading import evaluation_folders, finished_evaluations
from explicit_learning.report.run.samples import samples_of
from explicit_learning.report.run.series import bucketed
from explicit_learning.report.sampled_tokens import with_sampled_tokens
from explicit_learning.rundir import layout
from explicit_learning.rundir.events import read_events
from explicit_learning.verify.diff.rows import metrics_rows
from explicit_learning.verify.diff.run_files import read_run_files
from explicit_learning.verify.opening import open_run
from explicit_learning.verify.reachable import Reachable, reach
from explicit_learning.verify.verifying import verify_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.report.compare.reading import Found
    from explicit_learning.report.run.samples import Sample
    from explicit_learning.report.run.series import Metrics
    from explicit_learning.rundir.events import Event
    from explicit_learning.verify.diff.rows import Row
    from explicit_learning.verify.diff.run_files import RunFiles
    from explicit_learning.verify.verifying import Verification

__all__ = ["TOKENS", "Pace", "ReportedRun", "read_reported_run"]

GATE = "report"
TOKENS = "tokens sampled so far"  # a series of its own; no metric has spaces in its name


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
        evaluations_left_out: Number of others: not finished, or damaged.
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
    evaluations_left_out: int
    samples: dict[str, list[Sample]]
    rewards: dict[str, int]
    remarks: tuple[str, ...]


def read_reported_run(path: Path, *, with_samples: bool, with_curves: bool = True) -> ReportedRun:
    """Read and verify a run.

    Args:
        path: The run directory, or an archive of a run.
        with_samples: Whether to read its traces for completions to show.
        with_curves: Whether its curves are drawn. Where they are not, they are not held either.

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
    metrics, evaluations = _metrics(files, remarks), tuple(finished_evaluations(tree))
    if not with_curves:
        metrics.series.clear()
    return ReportedRun(
        name=escaped(files.plan.run_id),
        place=escaped(str(path)),
        files=files,
        verification=verification,
        metrics=metrics,
        pace=tuple(_pace(events)),
        evaluations=evaluations,
        evaluations_left_out=len(evaluation_folders(tree)) - len(evaluations),
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
    if not files.has_metrics:
        return bucketed((), steps=files.steps)

    def rows() -> Iterator[tuple[int, dict[str, float | None]]]:
        try:
            for row, tokens in _with_tokens(metrics_rows(files.tree, torn_end=files.torn_end), files.plan):
                values = {name: value for name, value in row.values.items() if name != "step"}
                yield row.step, values if tokens is None else values | {TOKENS: tokens}
        except Refusal as refusal:
            fault = refusal.faults[0]
            remarks.append(f"{layout.METRICS} is shown up to {escaped(fault.file or '')}: {escaped(fault.found)}")

    return bucketed(rows(), steps=files.steps)


def _with_tokens(rows: Iterator[Row], plan: Plan) -> Iterator[tuple[Row, int | None]]:
    return with_sampled_tokens(rows, plan) if plan.samples else ((row, None) for row in rows)


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
