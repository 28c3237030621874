"""`el check PLAN`: every gate, and nothing trained."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from explicit_learning.cli.output import (
    add_accept_argument,
    add_json_argument,
    answer,
    print_not_checked,
    print_warnings,
)
from explicit_learning.cli.paths import given_path
from explicit_learning.files.remembered_hashes import remembering_hashes
from explicit_learning.gates.check import check_plan
from explicit_learning.gates.memory import memory_text
from explicit_learning.inputs.lora_targets import planned_targets, targets_text
from explicit_learning.plan.reading import read_plan
from explicit_learning.rundir.layout import default_run_folder

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("plan", type=given_path, metavar="PLAN", help="a frozen plan")
    parser.add_argument("--out", type=given_path, metavar="DIR", help="run folder (default: that of `el run`)")
    deep = "hash every input again, even one that did not change since an earlier check; `el run` always does"
    parser.add_argument("--deep", action="store_true", help=deep)
    add_accept_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Check, and print every fault."""
    document = read_plan(args.plan)
    plan = document.plan
    out = args.out if args.out or plan is None else default_run_folder(plan.run_id)
    with nullcontext() if args.deep else remembering_hashes() as memory:
        checked = check_plan(document, out=out, accept_changes=args.accept_changes)
    warnings = checked.warnings
    print_warnings(args.plan, warnings)
    print_not_checked(checked.not_checked)
    targets: tuple[str, ...] = ()
    if not checked.faults and plan:
        targets = planned_targets(args.plan.resolve().parent / plan.model.path, plan.lora)
        if not args.json:
            print(f"{args.plan}: run {plan.run_id} is in order", file=sys.stderr)
            print(targets_text(targets), file=sys.stderr)
    if checked.memory and not args.json:
        print(memory_text(checked.memory), file=sys.stderr)
    if memory and memory.files and not args.json:
        what = f"{memory.files:,} files ({memory.size / 1e6:,.0f} MB)"
        print(f"not hashed again: {what} that did not change since an earlier check (--deep does)", file=sys.stderr)
    return answer(
        checked.faults,
        as_json=args.json,
        warnings=list(warnings),
        adapted_modules=list(targets),
        not_checked=list(checked.not_checked),
        memory=checked.memory.to_json() if checked.memory else None,
        not_hashed_again=memory.files if memory else 0,
    )
