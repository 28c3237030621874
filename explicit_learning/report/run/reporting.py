"""From the runs that are named to a page about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from explicit_learning.errors import FaultCollector, Refusal
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.progress import progress
from explicit_learning.report.compare.figures import reason_text
from explicit_learning.report.compare.gathering import gather
from explicit_learning.report.run.curves import MOST_LINES
from explicit_learning.report.run.page import MOST_WITH_SAMPLES, report_plots, write_report_page
from explicit_learning.report.run.reading import read_reported_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.report.plots.plot import Plot
    from explicit_learning.report.run.reading import ReportedRun

__all__ = ["Report", "report_runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A page that was written.

    Attributes:
        runs: The runs on it.
        plots: Its plots.
        left_out: Which runs could not be read and why, in words.
        bytes: Its size.
    """

    runs: tuple[ReportedRun, ...]
    plots: tuple[Plot, ...]
    left_out: tuple[str, ...]
    bytes: int


def report_runs(named: Sequence[Path], page: Path) -> Report:
    """Read and verify runs, and write a page about them.

    Args:
        named: Run directories, archives of runs, and folders of experiments.
        page: The file, which `explicit_learning.report.page.page.require_page` has let pass.

    Raises:
        Refusal: If something that is named is not a run, if no run can be read, or if the page cannot be written.
    """
    gathered = gather(named)
    faults = FaultCollector("report")
    runs: list[ReportedRun] = []
    left_out = [
        escaped(f"{run.place}: {'; '.join(reason_text(reason) for reason in run.reasons)}") for run in gathered.absent
    ]
    with progress("verifying runs", len(gathered.runs), "runs") as advance:
        for path in gathered.runs:
            try:
                few, drawn = len(gathered.runs) <= MOST_WITH_SAMPLES, len(runs) < MOST_LINES
                runs.append(read_reported_run(path, with_samples=few, with_curves=drawn))
            except Refusal as refusal:
                faults.extend(refusal.faults)
                left_out.append(escaped(f"{path}: {refusal.faults[0].found}; expected {refusal.faults[0].expected}"))
            advance(1)
    if not runs:
        faults.refuse_if_any()
    runs = _with_different_names(runs)
    plots = report_plots(runs)
    size = write_report_page(page, runs, plots, left_out=left_out)
    return Report(runs=tuple(runs), plots=tuple(plots), left_out=tuple(left_out), bytes=size)


def _with_different_names(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """Return runs whose names differ: those of one id are numbered in their order."""
    names = [run.name for run in runs]
    return [
        replace(run, name=f"{run.name} ({names[: place + 1].count(run.name)})") if names.count(run.name) > 1 else run
        for place, run in enumerate(runs)
    ]
