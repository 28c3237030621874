"""`el data show DIR`: what is in a dataset, in figures and as a contact sheet."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from explicit_learning.cli.numbers import image_tokens, positive, seed
from explicit_learning.cli.output import add_json_argument, answer, print_warnings, show
from explicit_learning.cli.paths import given_path
from explicit_learning.data.dataset_manifest import MANIFEST_NAME, load_dataset_manifest
from explicit_learning.data.preflight import Tokens
from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.data.summary.sampling import GroupSample
from explicit_learning.data.summary.summary import summarise
from explicit_learning.errors import Context, ExitCode, FaultCollector
from explicit_learning.files.resources import PROMPTS
from explicit_learning.files.typed_json import checked_json
from explicit_learning.report.dataset import dataset_text
from explicit_learning.report.sheet.sheet import require_sheet, write_sheet

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

__all__ = ["add_arguments", "run"]

GATE = "data"
USAGE = Context(gate="usage", exit_code=ExitCode.USAGE)
DATASET = Context(gate=GATE, fix="name a folder that `el data digits` or `el data build` has made")
GROUPS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", type=given_path, metavar="DIR", help=f"a dataset: a folder with {MANIFEST_NAME}")
    model = "count prompts in the tokens of this model, images included, with prompts/common_system.txt"
    parser.add_argument("--model", type=given_path, metavar="DIR", help=model)
    limit = "a plan's generation.max_image_tokens (default: the model's own limit)"
    parser.add_argument("--max-image-tokens", type=image_tokens, metavar="N", help=limit)
    sheet = "write a contact sheet: one page (.html) or a picture (.png); nothing may be there yet"
    parser.add_argument("--sheet", type=given_path, metavar="FILE", help=sheet)
    parser.add_argument("--groups", type=positive, default=GROUPS, metavar="N", help=f"on the sheet (default {GROUPS})")
    parser.add_argument("--seed", type=seed, default=0, help="which groups are drawn for the sheet (default 0)")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Read the dataset, and print what is in it; what is wrong with rows and with shown images follows."""
    if args.sheet:
        require_sheet(args.sheet, groups=args.groups)
    if args.max_image_tokens and not args.model:
        fix = "name the model whose tokens are counted, too"
        raise USAGE.refusal(found="--max-image-tokens without --model", expected="both, or neither", fix=fix)
    manifest = load_dataset_manifest(_manifest_file(args.folder), gate=GATE)
    tokens = None
    if args.model:
        system = load_system_prompt(PROMPTS / "common_system.txt")
        tokens = Tokens.of_model(args.model, system, max_image_tokens=args.max_image_tokens)
    sample = GroupSample(groups=args.groups, seed=args.seed) if args.sheet else None
    faults = FaultCollector(GATE)
    summary = summarise(manifest, faults, tokens=tokens, sample=sample)
    sheet = write_sheet(args.sheet, manifest, sample.groups(), faults, seed=args.seed) if sample else None
    warnings = [*summary.warnings, *(sheet.remarks if sheet else ())]
    if not args.json:
        show(dataset_text(summary))
        print_warnings(args.folder, warnings)
        if sheet:
            counts = f"groups: {sheet.groups:,}, views: {sheet.views:,}, {sheet.bytes / 1e6:.1f} MB"
            print(f"wrote {args.sheet} ({counts})", file=sys.stderr)
    return answer(
        faults.faults(),
        as_json=args.json,
        summary=checked_json(summary, gate=GATE, file="(answer)") if args.json else None,
        model=str(args.model) if args.model else None,
        max_image_tokens=args.max_image_tokens,
        sheet=asdict(sheet) | {"file": str(args.sheet)} if sheet else None,
    )


def _manifest_file(folder: Path) -> Path:
    """Return a dataset's manifest.

    Raises:
        Refusal: If the folder has none.
    """
    manifest = folder / MANIFEST_NAME
    if not manifest.exists():
        found = (
            f"a folder without {MANIFEST_NAME}"
            if folder.is_dir()
            else "a file"
            if folder.exists()
            else "no such folder"
        )
        raise DATASET.at(folder).refusal(found=found, expected="the folder of a dataset")
    return manifest
