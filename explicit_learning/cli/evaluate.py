"""`el evaluate RUN…`: greedy answers to the frozen evaluation rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from explicit_learning.cli.numbers import base_items
from explicit_learning.cli.output import add_json_argument, answer, show
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import Context, ExitCode
from explicit_learning.evaluation.requests import Questions, Which, answer_requests, evaluation_of_run, models_of_run
from explicit_learning.plan.typed_plan import EvaluationEngine
from explicit_learning.report.outcomes import outcomes_text

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from explicit_learning.evaluation.requests import EvaluationRequest

__all__ = ["add_arguments", "run"]

USAGE = Context(gate="evaluation", exit_code=ExitCode.USAGE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("runs", type=given_path, nargs="+", metavar="RUN", help="a completed run directory")
    whose = f"whose answers, separated by commas: {', '.join(get_args(Which))} (default: all that the run has but best)"
    parser.add_argument("--which", metavar="A,B", help=whose)
    other = "answers of another adapter that fits the run's plan, such as a checkpoint's; alone unless --which is given"
    parser.add_argument("--adapter", type=given_path, metavar="DIR", help=other)
    parser.add_argument("--rows", type=given_path, metavar="FILE", help="evaluation rows to ask instead of the plan's")
    place = "where the images of --rows lie (default: in the folder of the file)"
    parser.add_argument("--assets", type=given_path, metavar="DIR", help=place)
    limit = "ask about so many base items only, drawn by their names"
    parser.add_argument("--limit", type=base_items, metavar="N", help=limit)
    engine = "what answers: the trainer's own model, or vLLM; by default the plan's generation.evaluation_engine"
    parser.add_argument("--engine", choices=get_args(EvaluationEngine), help=engine)
    parser.add_argument("--plan", type=given_path, help="the plan a run was started with, if it moved")
    place = "the folder for the evaluations, each in a folder of its own; by default RUN/evaluations"
    parser.add_argument("--out", type=given_path, help=place)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Evaluate, and print tables or the evaluations.

    Raises:
        Refusal: If the command line contradicts itself, or anything that an evaluation needs is not in order.
    """
    wanted = _wanted(args)
    questions = Questions(rows=args.rows, asset_root=args.assets, limit=args.limit)
    known: set[str] = set()
    by_run: list[list[EvaluationRequest]] = []
    for folder in args.runs:
        models: list[Which | Path] = [] if wanted is None else [*wanted]
        if wanted is None and args.adapter is None:
            models = [*models_of_run(folder)]
        if args.adapter is not None:
            models.append(args.adapter)
        by_run.append(
            [
                evaluation_of_run(
                    folder,
                    which,
                    questions=questions,
                    engine=args.engine,
                    plan_file=args.plan,
                    out=args.out,
                    known=known,
                )
                for which in models
            ]
        )
    evaluations = answer_requests(request for requests in by_run for request in requests)
    if not args.json:
        found = iter(evaluations)
        # From what a run started with to what it ended with.
        shown = [pair for requests in by_run for pair in [(each.label, next(found)) for each in requests][::-1]]
        show(outcomes_text(shown))
    return answer([], as_json=args.json, evaluations=evaluations)


def _wanted(args: argparse.Namespace) -> list[Which] | None:
    """Return whose answers are asked for by name; ``None`` if none are named.

    Raises:
        Refusal: With exit code 64 if a name is unknown, or an option stands without the one that it belongs to.
    """
    if args.assets is not None and args.rows is None:
        found, expected = "no --rows", "--rows FILE beside it"
        raise USAGE.refusal(pointer="--assets", found=found, expected=expected, fix="name the rows, or leave it out")
    if args.which is None:
        return None
    known: tuple[Which, ...] = get_args(Which)
    names = [name.strip() for name in args.which.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        found = ", ".join(unknown) or "an empty list"
        fix = "choose among these; name an adapter's folder with --adapter"
        raise USAGE.refusal(pointer="--which", found=found, expected=", ".join(known), fix=fix)
    return [which for which in known if which in names]
