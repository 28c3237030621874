"""`el evaluate RUN…`: greedy answers to the frozen evaluation rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from explicit_learning.cli.output import add_json_argument, answer, show
from explicit_learning.cli.paths import folder_path
from explicit_learning.evaluation.requests import answer_requests, evaluation_of_run
from explicit_learning.plan.typed_plan import EvaluationEngine
from explicit_learning.report.table import evaluation_table

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a completed run directory")
    whose = "whose answers: the final adapter's (default), the initial adapter's, or the base model's"
    parser.add_argument("--which", choices=("final", "initial", "base"), default="final", help=whose)
    engine = "what answers: the trainer's own model, or vLLM; by default the plan's generation.evaluation_engine"
    parser.add_argument("--engine", choices=get_args(EvaluationEngine), help=engine)
    parser.add_argument("--plan", type=Path, help="the plan a run was started with, if it moved")
    place = "the folder for the evaluations, each in a folder of its own; by default RUN/evaluations"
    parser.add_argument("--out", type=folder_path, help=place)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Evaluate, and print a table or the evaluations."""
    known: set[str] = set()
    requests = [
        evaluation_of_run(folder, args.which, engine=args.engine, plan_file=args.plan, out=args.out, known=known)
        for folder in args.runs
    ]
    evaluations = answer_requests(requests)
    if not args.json:
        show(evaluation_table([(request.label, found) for request, found in zip(requests, evaluations, strict=True)]))
    return answer([], as_json=args.json, evaluations=evaluations)
