"""`el run PLAN`, and `el PLAN`: check, launch, train, finalise; the same command again resumes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from explicit_learning.cli.node_flags import add_node_arguments, given_node_flags
from explicit_learning.cli.output import (
    add_accept_argument,
    add_json_argument,
    answer,
    print_not_checked,
    print_warnings,
)
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import Refusal
from explicit_learning.files.progress import say
from explicit_learning.gates.check import check_plan
from explicit_learning.launch.launch_answer import JSON_VARIABLE
from explicit_learning.launch.multi_node.nodes import find_node_place
from explicit_learning.launch.multi_node.refusing import tell_other_nodes
from explicit_learning.launch.start import start_launch
from explicit_learning.plan.reading import read_plan
from explicit_learning.rundir.layout import default_run_folder

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from explicit_learning.errors import ExitCode
    from explicit_learning.launch.multi_node.nodes import NodePlace

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("plan", type=given_path, metavar="PLAN", help="a frozen plan")
    where = "run folder (default: $EXPLICIT_RUNS/RUN_ID, else runs/RUN_ID)"
    parser.add_argument("--out", type=given_path, metavar="DIR", help=where)
    audit = "if the run resumes, prove that its whole state was restored (smoke runs always do)"
    parser.add_argument("--audit", action="store_true", help=audit)
    add_accept_argument(parser)
    add_node_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Check everything, then become the launcher; return only if there is nothing to launch.

    Raises:
        Refusal: With every fault that the gates found.
    """
    node = find_node_place(given_node_flags(args))
    try:
        folder = _launch(args, node)
    except Exception as error:
        if node is not None:
            tell_other_nodes(node, error)
        raise
    return answer([], as_json=args.json, run=str(folder.resolve()))


def _launch(args: argparse.Namespace, node: NodePlace | None) -> Path:
    """Check everything, then become the launcher; return the run's folder if there is nothing to launch."""
    say(f"checking {args.plan}")
    document = read_plan(args.plan)
    plan = document.plan
    folder = args.out if args.out or plan is None else default_run_folder(plan.run_id)
    nodes = node.count if node else 1
    checked = check_plan(
        document, out=folder, nodes=nodes, node=node.rank if node else 0, accept_changes=args.accept_changes
    )
    if plan is None or folder is None or checked.faults:
        print_not_checked(checked.not_checked)
        raise Refusal(checked.faults)
    print_warnings(args.plan, checked.warnings)
    os.environ[JSON_VARIABLE] = "1" if args.json else ""
    start_launch(plan, checked, folder, node=node, audit=args.audit, accept_changes=args.accept_changes)
    return folder
