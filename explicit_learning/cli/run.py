"""`el run PLAN`, and `el PLAN`: check, launch, train, finalise; the same command again resumes."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from explicit_learning.cli.output import add_json_argument, answer
from explicit_learning.completion.lifecycle import prepare_run
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.progress import say
from explicit_learning.gates.check import check_plan
from explicit_learning.gates.image import image_identity
from explicit_learning.gates.machine import measure_hardware
from explicit_learning.gates.trackers import named_trackers
from explicit_learning.inputs.code import code_identity
from explicit_learning.launch.environment import rank_environment
from explicit_learning.launch.json_answer import JSON_VARIABLE
from explicit_learning.launch.multi_node.nodes import Nodes, add_node_arguments, named_nodes
from explicit_learning.launch.start import exec_into_launcher
from explicit_learning.plan.reading import read_plan
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir.launch_manifest import FollowerManifest, LaunchManifest
from explicit_learning.rundir.layout import step_of
from explicit_learning.rundir.run_lock import hold_run

if TYPE_CHECKING:
    import argparse

    from explicit_learning.gates.check import Checked
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.run_lock import RunLock

__all__ = ["HELP", "NAME", "add_arguments", "default_run_folder", "run"]

NAME = "run"
HELP = "check, launch, train, finalise; the same command again resumes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="a frozen plan")
    where = "run folder (default: $EXPLICIT_RUNS/RUN_ID, else runs/RUN_ID)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=where)
    audit = "if the run resumes, prove that its whole state was restored (smoke runs always do)"
    parser.add_argument("--audit", action="store_true", help=audit)
    add_node_arguments(parser)
    add_json_argument(parser)


def default_run_folder(run_id: str) -> Path:
    """Return where a run goes when nothing else is said."""
    return Path(os.environ.get("EXPLICIT_RUNS") or "runs") / run_id


def run(args: argparse.Namespace) -> ExitCode:
    """Check everything, then become the launcher; return only if there is nothing to launch.

    Raises:
        Refusal: With every fault that the gates found.
    """
    nodes = named_nodes(args)
    count = nodes.count if nodes else 1
    say(f"checking {args.plan}")
    document = read_plan(args.plan)
    plan = document.plan
    out = args.out if args.out or plan is None else default_run_folder(plan.run_id)
    checked = check_plan(document, out=out, nodes=count)
    if plan is None or out is None or checked.faults:
        raise Refusal(checked.faults)
    folder = out
    named_trackers(os.environ, run_mode=plan.run_mode)  # refuses before anything is written
    for warning in checked.document.warnings:
        print(f"warning: {args.plan} {warning}", file=sys.stderr)
    os.environ[JSON_VARIABLE] = "1" if args.json else ""
    if nodes is not None and nodes.rank > 0:
        _follow(plan, checked, folder, nodes)
    with hold_run(folder) as lock:
        _launch(args.plan, plan, checked, folder, lock, nodes=nodes, audit=args.audit)
    return answer([], as_json=args.json, run=str(folder))


def _follow(plan: Plan, checked: Checked, folder: Path, nodes: Nodes) -> NoReturn:
    """Become the launcher of a node that follows node 0, which holds the run."""
    manifest = FollowerManifest(
        plan=plan,
        run_folder=str(folder.resolve()),
        paths=checked.paths,
        running_commit=code_identity().commit,
        hardware=measure_hardware(),
        image=image_identity(),
    )
    exec_into_launcher(manifest, plan, os.environ, lock=None, nodes=nodes)


def _launch(
    path: Path, plan: Plan, checked: Checked, folder: Path, lock: RunLock, *, nodes: Nodes | None, audit: bool
) -> None:
    """Prepare the run folder and become the launcher; returns if the run only had to be finalised."""
    code = code_identity()
    launch_id = secrets.token_hex(16)
    environment = rank_environment(plan, os.environ, interface=nodes.interface if nodes else None)
    prepared = prepare_run(
        folder,
        plan=plan,
        plan_bytes=path.read_bytes(),
        hardware=measure_hardware(),
        image=image_identity(),
        code=code,
        launch_id=launch_id,
        gates={
            "plan_file": str(path.resolve()),
            "environment": {"settings": environment.settings, "overridden": environment.overridden},
        },
    )
    if prepared.action == "finalise":
        return
    resumed = step_of(prepared.checkpoint or "") or 0
    stops = plan.run_mode == "smoke" and resumed < SMOKE_STOP_STEP
    manifest = LaunchManifest(
        plan=plan,
        run_folder=str(folder.resolve()),
        paths=checked.paths,
        run_manifest_sha256=prepared.run_manifest_sha256,
        running_commit=code.commit,
        launch_id=launch_id,
        resume_checkpoint=prepared.checkpoint,
        report_to=tuple(named_trackers(os.environ, run_mode=plan.run_mode)),
        stop_at_step=SMOKE_STOP_STEP if stops else None,
        audit=audit,
    )
    how = "starting" if prepared.checkpoint is None else f"resuming from {prepared.checkpoint}"
    say(f"{how} run {plan.run_id} ({plan.arm}, {plan.optimisation.max_steps} steps) in {folder}")
    exec_into_launcher(manifest, plan, os.environ, lock=lock, nodes=nodes)
