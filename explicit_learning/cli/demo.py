"""`el demo`: the whole story on a CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.cli.freeze import count_sft
from explicit_learning.cli.output import add_json_argument, answer
from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.evaluation.requests import answer_requests, evaluation_of_run
from explicit_learning.experiment.document import narrow, read_experiment
from explicit_learning.experiment.runner import StageFailedError, run_experiment
from explicit_learning.files.progress import say
from explicit_learning.files.resources import PLANS
from explicit_learning.files.strict_json import load_json
from explicit_learning.report.table import evaluation_table

if TYPE_CHECKING:
    import argparse
    from typing import Any

    from explicit_learning.experiment.runner import RunOfStage

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "demo"
HELP = "the whole story on a CPU: data, SFT, RL arms, evaluation"
DEFAULT_OUT = Path("runs") / "demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where everything goes (default {DEFAULT_OUT})")
    parser.add_argument("--quick", action="store_true", help="fewer rows and steps")
    parser.add_argument("--arms", metavar="A,B", help="only these RL arms (the SFT stage always runs)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the runs (default 0)")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Run the embedded experiment and print what it shows and where everything lies."""
    started = time.monotonic()
    out = args.out or DEFAULT_OUT.with_name("demo-quick" if args.quick else "demo")
    document = read_experiment(PLANS / "demo" / ("experiment-quick.json" if args.quick else "experiment.json"))
    arms = None if args.arms is None else [name.strip() for name in args.arms.split(",") if name.strip()]
    experiment = narrow(document, arms=arms, seed=args.seed)
    try:
        runs = run_experiment(experiment, out=out, count_sft=count_sft, after_stage=_show_stage)
    except StageFailedError as failure:
        code = ExitCode(failure.code) if failure.code in set(ExitCode) else ExitCode.INTERNAL
        fix = "read the lines above; the same command again continues"
        found = f"{failure} (log: {out / failure.folder / 'logs'})"
        raise Refusal(Fault(gate="demo", found=found, expected="0", fix=fix, exit_code=code)) from None
    rows = _evaluations(runs)
    if not args.json:
        print(evaluation_table([(name, found) for name, found, _ in rows], more=[("tokens\nsampled", _tokens(rows))]))
        _show_places(out, runs)
        say(f"demo finished in {time.monotonic() - started:.0f} s")
    return answer([], as_json=args.json, out=str(out), evaluations=[found | {"model": name} for name, found, _ in rows])


def _show_stage(runs: list[RunOfStage]) -> None:
    """Print held-out rates before and after the stage that just ended."""
    stage = runs[-1]
    before = evaluation_of_run(stage.folder, "base" if stage.plan["initial_adapter"] is None else "initial")
    after = evaluation_of_run(stage.folder, "final")
    found = answer_requests([before, after])
    print(evaluation_table([(f"before {stage.arm}", found[0]), (f"after {stage.arm}", found[1])]), flush=True)


def _evaluations(runs: list[RunOfStage]) -> list[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    """Return name, evaluation and completion marker of the base model and of every run."""
    base = evaluation_of_run(runs[0].folder, "base")
    requests = [base, *(evaluation_of_run(run.folder, "final") for run in runs)]
    names = ["base model", *(run.folder.name for run in runs)]
    markers = [None, *(load_json(run.folder / "training-complete.json", gate="demo") for run in runs)]
    return list(zip(names, answer_requests(requests), markers, strict=True))


def _tokens(rows: list[tuple[str, dict[str, Any], dict[str, Any] | None]]) -> list[str]:
    counts = [marker and marker["counts"]["sampled_tokens"] for _, _, marker in rows]
    return ["–" if count is None else f"{count:,}" for count in counts]


def _show_places(out: Path, runs: list[RunOfStage]) -> None:
    print("where everything lies:")
    print(f"  {out / 'data'}: images, slots, SFT rows, evaluation rows")
    for run in runs:
        print(
            f"  {run.plan_file}: the frozen plan; {run.folder}: the run, with final-adapter/ and training-complete.json"
        )
