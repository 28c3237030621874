"""`el freeze DRAFT -o PLAN`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.cli.output import add_json_argument, answer
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.strict_json import parse_json
from explicit_learning.files.typed_json import from_json
from explicit_learning.freeze.freezing import freeze, read_draft
from explicit_learning.gates.memory import check_memory, memory_text, rank_memory
from explicit_learning.gates.nvml import read_inventory
from explicit_learning.gates.row_sizes import frozen_row_sizes
from explicit_learning.inputs.lora_targets import planned_targets, targets_text
from explicit_learning.plan.typed_plan import Plan

if TYPE_CHECKING:
    import argparse

    from explicit_learning.inputs.sft_pass import SftPass

__all__ = ["add_arguments", "count_sft", "run"]

# Inside a draft, paths start at the draft's folder; on the command line a user means the working directory.
PATHS = ("model.path", "initial_adapter.path", "prompt.path", "data.manifest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("draft", type=given_path, metavar="DRAFT", help="what a person wrote; see plans/")
    parser.add_argument(
        "-o", "--output", type=given_path, required=True, metavar="PLAN", help="where the plan is written"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override a field of the draft, such as seed=3 or initial_adapter.path=runs/sft/final-adapter",
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Freeze, and print where the plan is."""
    draft = read_draft(args.draft)
    for assignment in args.set:
        _assign(draft, assignment)
    plan, warnings = freeze(draft, file=args.draft, out=args.output, count_sft=count_sft)
    frozen = from_json(Plan, plan)
    base = args.output.resolve().parent
    rows = frozen_row_sizes(frozen, base=base)
    memory = rank_memory(frozen, base / frozen.model.path, rows=rows, environ=os.environ, inventory=read_inventory())
    if memory is not None:
        unfit, near = check_memory(memory, file=str(args.output), plan=frozen)
        # A plan may be frozen on another machine than it will run on, so what cannot fit here is told and not refused.
        warnings += [
            f"{fault.pointer}: {fault.found}; {fault.expected}. `el check` refuses the plan here: {fault.fix}"
            for fault in unfit
        ]
        warnings += near
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    targets = planned_targets(base / frozen.model.path, frozen.lora)
    if not args.json:
        print(f"{args.output}: run {plan['run_id']}, frozen as {plan['frozen_config_sha256']}", file=sys.stderr)
        print(targets_text(targets), file=sys.stderr)
        if memory is not None:
            print(memory_text(memory), file=sys.stderr)
    details = {"plan": str(args.output), "frozen_config_sha256": plan["frozen_config_sha256"], "warnings": warnings}
    details["adapted_modules"] = list(targets)
    return answer([], as_json=args.json, **details, memory=memory.to_json() if memory else None)


def _assign(draft: dict[str, Any], assignment: str) -> None:
    """Set one field of a draft, in place: a value that is not JSON is text, a path starts at the working directory."""
    name, equals, text = assignment.partition("=")
    parts = name.split(".")
    context = Context(gate="usage", exit_code=ExitCode.USAGE)
    try:
        value = (
            str(Path(text).resolve()) if name in PATHS else parse_json(os.fsencode(text), gate="usage", file="--set")
        )
    except (Refusal, ValueError):
        value = text
    holder: Any = draft
    for part in parts[:-1]:
        if holder.get(part) is None:
            holder[part] = {}
        holder = holder[part]
        if not isinstance(holder, dict):
            break
    if not equals or not all(parts) or not isinstance(holder, dict):
        fix = "write --set FIELD=VALUE with dots between nested fields, such as --set optimisation.max_steps=20"
        raise context.refusal(pointer="--set", found=assignment, expected="FIELD=VALUE", fix=fix)
    holder[parts[-1]] = value


def count_sft(model: Path, prompt: str, dataset: Path, plan: dict[str, Any]) -> SftPass:
    """Count an SFT pass with the model's own tokenizer (imports transformers)."""
    from explicit_learning.training.tokens import count_sft_pass

    return count_sft_pass(model, prompt, dataset, plan)
