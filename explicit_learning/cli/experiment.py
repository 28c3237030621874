"""`el experiment DOC --out DIR`: arms × seeds on one dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.cli.freeze import count_sft
from explicit_learning.cli.numbers import positive
from explicit_learning.cli.output import (
    accept_options,
    add_accept_argument,
    add_json_argument,
    answer,
    counted_faults,
    show,
)
from explicit_learning.cli.paths import given_path
from explicit_learning.experiment.document import read_experiment
from explicit_learning.experiment.runner import run_experiment
from explicit_learning.files.progress import say
from explicit_learning.launch.signals import StopRequest, stop_signals_to
from explicit_learning.report.experiment import experiment_results, experiment_text, places_text, stage_text
from explicit_learning.report.run.reporting import report_runs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.errors import ExitCode, Fault
    from explicit_learning.experiment.document import Experiment
    from explicit_learning.experiment.runner import RunOfStage

__all__ = ["add_arguments", "run", "run_and_print"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("document", type=given_path, metavar="DOC", help="an experiment document; see plans/demo")
    parser.add_argument("--out", type=given_path, required=True, metavar="DIR", help="where everything goes")
    jobs = "RL runs at once (default 1); runs on GPUs would get in each other's way"
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help=jobs)
    add_accept_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Run the experiment, and print what it shows."""
    experiment, options = read_experiment(args.document), accept_options(args)
    return run_and_print(experiment, args.out, as_json=args.json, jobs=args.jobs, options=options)


def run_and_print(
    experiment: Experiment,
    out: Path,
    *,
    as_json: bool,
    jobs: int,
    options: Sequence[str] = (),
    report: str | None = None,
) -> ExitCode:
    """Run an experiment; print a table after each run and all results at the end.

    Args:
        experiment: What to run.
        out: Folder of the whole experiment.
        as_json: Whether to print one JSON object instead of tables.
        jobs: How many RL runs at once.
        options: Further options of `el run`, for every run.
        report: Name of a page about all runs that is written into the folder at the end, as `el report` does; it
            verifies every run.

    Raises:
        Refusal: If a plan cannot be frozen, or a run ends with another exit code than 0.
    """
    stop = StopRequest()
    stop_signals_to(stop)

    def show_stage(runs: list[RunOfStage]) -> None:
        if not as_json:
            show(stage_text(runs))

    runs = run_experiment(
        experiment, out=out, count_sft=count_sft, after_stage=show_stage, stop=stop, jobs=jobs, options=options
    )
    results = experiment_results(runs)
    if not as_json:
        show(experiment_text(results))
        show(places_text(out, runs))
    page = None if report is None else out / report
    faults = [] if page is None else _reported(runs, page)
    return answer(
        faults,
        as_json=as_json,
        out=str(out),
        report=None if page is None else str(page),
        evaluations=[result.evaluation | {"model": result.name} for result in results],
    )


def _reported(runs: Sequence[RunOfStage], page: Path) -> list[Fault]:
    """Write a page about runs, say what each is, and return everything that is wrong."""
    faults: list[Fault] = []
    report = report_runs([run.folder for run in runs], page)
    for run in report.runs:
        found = run.verification
        faults += found.faults
        what = counted_faults(found.faults) if found.faults else "verified"
        signer = "unsigned" if found.signer is None else f"signer {found.signer}"
        say(f"el verify {run.place}: {what} ({found.bytes / 1e6:.1f} MB hashed; {signer})")
    say(f"report: {page.resolve().as_uri()}")
    return faults
