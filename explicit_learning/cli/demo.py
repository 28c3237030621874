"""`el demo`: the embedded experiment, from data to table, on a CPU."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from explicit_learning.cli.experiment import run_and_print
from explicit_learning.cli.numbers import positive, seed
from explicit_learning.cli.output import add_json_argument
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import Refusal
from explicit_learning.evaluation.environment import engine_faults
from explicit_learning.experiment.document import narrow, read_experiment
from explicit_learning.files.progress import say
from explicit_learning.files.resources import PLANS
from explicit_learning.plan.typed_plan import EvaluationEngine

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode

__all__ = ["add_arguments", "run"]

# A CPU rank uses one core, and two runs take 2 x 1 GiB of memory: what the smallest machine has. With vLLM one takes 3.
JOBS = {"exact": 2, "vllm": 1}
DEFAULT_OUT = Path("runs") / "demo"
REPORT = "report.html"
# What an engine changes in the drafts of each kind.
EVALUATED_BY_VLLM: dict[str, Any] = {"generation": {"evaluation_engine": "vllm"}}
OVERRIDES: dict[str, dict[str, Any]] = {
    "exact": {},
    "vllm": {
        "sft": EVALUATED_BY_VLLM,
        "rl": EVALUATED_BY_VLLM | {"vllm": {"use": True}, "determinism": "seeded"},
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--out", type=given_path, metavar="DIR", help=f"where everything goes (default {DEFAULT_OUT})")
    engine = "what samples in RL arms and answers held-out questions: the trainer's own model (default), or vLLM"
    parser.add_argument("--engine", choices=get_args(EvaluationEngine), default="exact", help=engine)
    parser.add_argument("--quick", action="store_true", help="fewer rows and steps")
    parser.add_argument("--arms", metavar="A,B", help="only these RL arms (the SFT stage always runs)")
    parser.add_argument("--seed", type=seed, metavar="N", help="seed of the runs (default 0)")
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="RL runs at once (default 2; 1 with vLLM or on one core)"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Run the embedded experiment and print what it shows and where everything lies.

    Raises:
        Refusal: With exit code 78 if this environment lacks the engine, before anything is written.
    """
    started = time.monotonic()
    if faults := engine_faults(args.engine, "cpu"):
        raise Refusal(faults)
    words = [DEFAULT_OUT.name, *(["quick"] if args.quick else []), *([] if args.engine == "exact" else [args.engine])]
    out = args.out or DEFAULT_OUT.with_name("-".join(words))
    document = PLANS / "demo" / ("experiment-quick.json" if args.quick else "experiment.json")
    arms = None if args.arms is None else [name.strip() for name in args.arms.split(",") if name.strip()]
    jobs = args.jobs or min(JOBS[args.engine], len(os.sched_getaffinity(0)))
    experiment = narrow(read_experiment(document, overrides=OVERRIDES[args.engine]), arms=arms, seed=args.seed)
    code = run_and_print(experiment, out, as_json=args.json, jobs=jobs, report=REPORT)
    say(f"demo finished in {time.monotonic() - started:.0f} s")
    return code
