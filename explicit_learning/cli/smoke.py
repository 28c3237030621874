"""`el smoke PLAN`: a short run that is stopped at step 5, resumed by another process, and compared with a third."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.cli.node_flags import add_node_arguments, given_node_flags
from explicit_learning.cli.output import accept_options, add_accept_argument, add_json_argument, answer
from explicit_learning.cli.paths import given_path
from explicit_learning.experiment.smoke_run import run_smoke
from explicit_learning.freeze.smoke_plan import SMOKE_SUFFIX
from explicit_learning.launch.signals import StopRequest, stop_signals_to

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode
    from explicit_learning.inputs.sft_pass import SftPass

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "plan", type=given_path, metavar="PLAN", help="a frozen plan; of a main plan a smoke plan is derived"
    )
    where = f"run folder (default: $EXPLICIT_RUNS/RUN_ID{SMOKE_SUFFIX}, else runs/RUN_ID{SMOKE_SUFFIX})"
    parser.add_argument("--out", type=given_path, metavar="DIR", help=where)
    add_accept_argument(parser)
    add_node_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Run all phases, and print what was proven."""
    stop = StopRequest()
    stop_signals_to(stop)
    done = run_smoke(
        args.plan,
        args.out,
        node_flags=given_node_flags(args),
        stop=stop,
        count_steps=_count_steps,
        options=accept_options(args),
    )
    return answer(
        [],
        as_json=args.json,
        run=str(done.run),
        plan=str(done.plan),
        audit=str(done.audit),
        comparison=None if done.comparison is None else str(done.comparison),
        outputs_equal=done.outputs_equal,
    )


def _count_steps(plan: dict[str, Any], steps: int) -> SftPass:
    """Count the first steps of an SFT pass with the model's own tokenizer (imports transformers)."""
    from explicit_learning.training.tokens import count_sft_steps

    return count_sft_steps(plan, steps)
