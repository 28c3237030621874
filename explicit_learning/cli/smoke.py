"""`el smoke PLAN`: a short run that is stopped at step 5, resumed by another process, and proves what it restored."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.cli.output import add_json_argument, answer
from explicit_learning.cli.run import default_run_folder
from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.experiment.child_command import run_child
from explicit_learning.files.progress import say
from explicit_learning.freeze.smoke_plan import SMOKE_SUFFIX, smoke_plan, write_smoke_plan
from explicit_learning.launch.multi_node.nodes import add_node_arguments, node_flags
from explicit_learning.launch.signals import StopRequest, stop_signals_to
from explicit_learning.plan.reading import read_plan
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoints import complete_checkpoints
from explicit_learning.rundir.resume_audit import read_audits

if TYPE_CHECKING:
    from explicit_learning.freeze.freezing import SftPass

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "smoke"
HELP = "stop a short run at step 5, resume it in a new process, and prove that nothing was lost"
POLL_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="a frozen plan; of a main plan a smoke plan is derived")
    where = f"run folder (default: $EXPLICIT_RUNS/RUN_ID{SMOKE_SUFFIX}, else runs/RUN_ID{SMOKE_SUFFIX})"
    parser.add_argument("--out", type=Path, metavar="DIR", help=where)
    add_node_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Run both phases, each in processes of its own, and say what was proven.

    Raises:
        Refusal: If the plan is refused, or a phase ends otherwise than it should.
    """
    stop = StopRequest()
    stop_signals_to(stop)
    plan_file, folder = _prepared(args.plan, args.out)
    while True:
        phase = 2 if _at_boundary(folder) else 1
        say(f"smoke phase {phase} of 2: {folder}")
        code = run_child(["run", str(plan_file), "--out", str(folder), *_flags(args, phase)], stop)
        if phase == 2 or code != ExitCode.STOPPED or stop.requested() or not _at_boundary(folder):  # noqa: PLR2004 - two phases
            break
    if code != ExitCode.DONE:
        raise Refusal(_ended(phase, code, folder))
    recorded = read_audits(folder)[-1]
    file, audit = recorded.file, recorded.audit
    components = sum(len(rank.components) for rank in audit.ranks)
    say(f"{folder}: resumed at {audit.checkpoint} in new processes; {components} components equal ({file})")
    return answer([], as_json=args.json, run=str(folder), plan=str(plan_file), audit=str(folder / file))


def _prepared(path: Path, out: Path | None) -> tuple[Path, Path]:
    """Return the smoke plan's file and the run's folder."""
    document = read_plan(path)
    plan = document.plan
    if plan is None:
        raise Refusal(document.faults)
    if plan.run_mode == "smoke":
        return path, out or default_run_folder(plan.run_id)
    folder = out or default_run_folder(plan.run_id + SMOKE_SUFFIX)
    file = folder.with_name(f"{folder.name}.plan.json")
    write_smoke_plan(smoke_plan(document.raw, file=path, out=file, count_steps=_count_steps), file)
    say(f"{file}: the smoke plan of {path}")
    return file, folder


def _count_steps(plan: dict[str, Any], steps: int) -> SftPass:
    """Count the first steps of an SFT pass with the model's own tokenizer (imports transformers)."""
    from explicit_learning.training.tokens import count_sft_steps

    return count_sft_steps(plan, steps)


def _at_boundary(folder: Path) -> bool:
    """Whether a smoke run's first phase is over."""
    if not (folder / layout.SMOKE_BOUNDARY).is_file():
        return False
    return layout.checkpoint_name(SMOKE_STOP_STEP) in complete_checkpoints(folder)


def _flags(args: argparse.Namespace, phase: int) -> list[str]:
    """Return the flags of several nodes for one phase, which is a launch, and so a meeting, of its own."""
    if args.rdzv_id is not None:
        args = argparse.Namespace(**vars(args) | {"rdzv_id": f"{args.rdzv_id}.{phase}"})
    return node_flags(args)


def _ended(phase: int, code: int, folder: Path) -> Fault:
    known = ExitCode(code) if code in set(ExitCode) else ExitCode.INTERNAL
    fix = f"read the lines above and {folder / layout.LOGS}"
    expected = f"exit code {int(ExitCode.STOPPED)} at {layout.checkpoint_name(SMOKE_STOP_STEP)}, then 0"
    if known is ExitCode.STOPPED:
        fix = "run the same command again: it goes on from the last checkpoint"
    return Fault(
        gate="smoke",
        file=str(folder),
        found=f"phase {phase} ended with exit code {code}",
        expected=expected,
        fix=fix,
        exit_code=known,
    )
