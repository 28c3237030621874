"""`el demo`: the embedded experiment, from data to table, on a CPU."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.cli.experiment import run_and_print
from explicit_learning.cli.numbers import positive, seed
from explicit_learning.cli.output import add_json_argument
from explicit_learning.cli.paths import folder_path
from explicit_learning.experiment.document import narrow, read_experiment
from explicit_learning.files.progress import say
from explicit_learning.files.resources import PLANS

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode

__all__ = ["add_arguments", "run"]

# A CPU rank uses one core, and two runs take 2 x 1 GiB of memory: what the smallest machine has.
JOBS = 2
DEFAULT_OUT = Path("runs") / "demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--out", type=folder_path, metavar="DIR", help=f"where everything goes (default {DEFAULT_OUT})")
    parser.add_argument("--quick", action="store_true", help="fewer rows and steps")
    parser.add_argument("--arms", metavar="A,B", help="only these RL arms (the SFT stage always runs)")
    parser.add_argument("--seed", type=seed, metavar="N", help="seed of the runs (default 0)")
    parser.add_argument("--jobs", type=positive, metavar="N", help="RL runs at once (default 2, or 1 on a single core)")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Run the embedded experiment and print what it shows and where everything lies."""
    started = time.monotonic()
    out = args.out or DEFAULT_OUT.with_name("demo-quick" if args.quick else "demo")
    document = PLANS / "demo" / ("experiment-quick.json" if args.quick else "experiment.json")
    arms = None if args.arms is None else [name.strip() for name in args.arms.split(",") if name.strip()]
    jobs = args.jobs or min(JOBS, len(os.sched_getaffinity(0)))
    code = run_and_print(
        narrow(read_experiment(document), arms=arms, seed=args.seed), out, as_json=args.json, jobs=jobs
    )
    say(f"demo finished in {time.monotonic() - started:.0f} s")
    return code
