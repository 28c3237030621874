"""`el selftest`: everything that only the machine itself can show."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.cli.output import add_json_argument, answer, show
from explicit_learning.cli.paths import given_path
from explicit_learning.experiment.selftest import RESULT, Selftest, run_selftest
from explicit_learning.launch.signals import StopRequest, stop_signals_to

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode
    from explicit_learning.inputs.sft_pass import SftPass

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--gpu", action="store_true", help="on this machine's GPUs; under 10 minutes")
    where.add_argument("--cpu", action="store_true", help="the same steps on a CPU, where nothing is compiled")
    parser.add_argument(
        "--model", type=given_path, metavar="DIR", help="train this model's adapters, not the tiny one's"
    )
    parser.add_argument("--out", type=given_path, metavar="DIR", help=f"keep runs and {RESULT} in this empty folder")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Go through all steps and print what they measured."""
    stop = StopRequest()
    stop_signals_to(stop)
    with tempfile.TemporaryDirectory(prefix="explicit-selftest-", ignore_cleanup_errors=True) as scratch:
        test = Selftest(
            accelerator="cuda" if args.gpu else "cpu",
            out=(args.out or Path(scratch)).absolute(),
            model=None if args.model is None else args.model.absolute(),
            stop=stop,
            count_steps=_count_steps,
        )
        run_selftest(test)
    if not args.json:
        show("\n".join(_lines(test.results)))
    return answer(test.faults, as_json=args.json, steps=test.results)


def _lines(results: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    for name, result in results.items():
        text = f"{name:<16}{'passed' if result['ok'] else 'failed'} in {result['seconds']:.0f} s"
        if "not_tried" in result:
            text = f"{name:<16}not tried: {result['not_tried']}"
        if "tokens_per_second" in result:
            text += f", {result['tokens_per_second']:.0f} tokens/s, peak {result['peak_bytes'] / 2**30:.2f} GiB"
        lines.append(text)
    return lines


def _count_steps(plan: dict[str, Any], steps: int) -> SftPass:
    """Count the first steps of an SFT pass with the model's own tokenizer (imports transformers)."""
    from explicit_learning.training.tokens import count_sft_steps

    return count_sft_steps(plan, steps)
