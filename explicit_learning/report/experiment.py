"""The results of an experiment: held-out rates before and after each stage, and of all its models side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.evaluation.requests import answer_requests, evaluation_of_run
from explicit_learning.files.typed_json import to_json
from explicit_learning.report.table import evaluation_table
from explicit_learning.rundir import layout
from explicit_learning.rundir.completion_marker import read_marker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.experiment.runner import RunOfStage
    from explicit_learning.rundir.completion_marker import CompletionMarker

__all__ = ["StageResult", "experiment_results", "experiment_text", "places_text", "stage_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """A model of the experiment and its evaluation.

    Attributes:
        name: The run's folder name, or ``base model``.
        evaluation: Its evaluation.
        marker: Its completion marker; ``None`` for the base model.
    """

    name: str
    evaluation: dict[str, Any]
    marker: CompletionMarker | None


def stage_text(runs: Sequence[RunOfStage]) -> str:
    """Return a table of held-out rates before and after the newest run.

    An SFT run is compared with the base model, an RL run with the SFT run whose adapter it started from.
    """
    newest, known = runs[-1], set[str]()
    named = newest.plan["initial_adapter"]
    if named is None:
        before = evaluation_of_run(newest.folder, "base", known=known)
    else:
        adapter = (newest.plan_file.parent / named["path"]).resolve()
        source = next((run for run in runs if (run.folder / layout.FINAL_ADAPTER).resolve() == adapter), None)
        before = (
            evaluation_of_run(newest.folder, "initial", known=known)
            if source is None
            else evaluation_of_run(source.folder, "final", known=known)
        )
    found = answer_requests([before, evaluation_of_run(newest.folder, "final", known=known)])
    return evaluation_table([(f"before {newest.folder.name}", found[0]), (f"after {newest.folder.name}", found[1])])


def experiment_results(runs: Sequence[RunOfStage]) -> list[StageResult]:
    """Return the base model's and every run's evaluation; those that are missing are made now."""
    known: set[str] = set()
    requests = [evaluation_of_run(runs[0].folder, "base", known=known)]
    requests += [evaluation_of_run(run.folder, "final", known=known) for run in runs]
    names = ["base model", *(run.folder.name for run in runs)]
    markers = [None, *(read_marker(run.folder) for run in runs)]
    return [
        StageResult(name=name, evaluation=evaluation, marker=marker)
        for name, evaluation, marker in zip(names, answer_requests(requests), markers, strict=True)
    ]


def experiment_text(results: Sequence[StageResult]) -> str:
    """Return the table of a whole experiment, with completions and sampled tokens."""
    counts = [to_json(result.marker.counts) if result.marker else {} for result in results]
    more = [
        (title, ["–" if count.get(name) is None else f"{count[name]:,}" for count in counts])
        for title, name in (("completions", "completions"), ("tokens\nsampled", "sampled_tokens"))
    ]
    return evaluation_table([(result.name, result.evaluation) for result in results], more=more)


def places_text(out: Path, runs: Sequence[RunOfStage]) -> str:
    """Return a text with the folders of an experiment, one per line."""
    lines = ["files of this experiment:"]
    if (out / "data").is_dir():
        lines.append(f"  {out / 'data'}: images, slots, SFT rows, evaluation rows")
    lines.append(f"  {out / 'plans'}: the frozen plans")
    shown = f"{layout.FINAL_ADAPTER}/, {layout.COMPLETION_MARKER}, {layout.METRICS}, {layout.EVALUATIONS}/"
    lines += [f"  {run.folder}: {shown}" for run in runs]
    return "\n".join(lines)
