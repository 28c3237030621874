"""`el data`: the embedded dataset (`digits`), one of a person's own rows (`build`), and what is in one (`show`)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from explicit_learning.cli import data_build, data_show
from explicit_learning.cli.numbers import seed
from explicit_learning.cli.output import add_json_argument, answer
from explicit_learning.cli.paths import given_path
from explicit_learning.data.dataset import load_dataset_manifest
from explicit_learning.freeze.draft import DIGITS_SIZES
from explicit_learning.freeze.draft_data import write_digits

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    digits = kinds.add_parser("digits", help="the embedded dataset of handwritten digits")
    digits.add_argument("--out", type=given_path, required=True, metavar="DIR", help="folder to make")
    digits.add_argument("--seed", type=seed, default=0, help="the same seed gives the same bytes (default 0)")
    digits.add_argument("--size", choices=DIGITS_SIZES, default="demo", help="how much (default demo)")
    add_json_argument(digits)
    digits.set_defaults(run_kind=_run_digits)
    text = "a dataset from your own images, questions, answers and evidence; the same command again goes on"
    built = kinds.add_parser("build", help=text, description=text[0].upper() + text[1:] + ".")
    data_build.add_arguments(built)
    built.set_defaults(run_kind=data_build.run)
    looked_at = kinds.add_parser("show", help="what is in a dataset, in figures and as a contact sheet")
    data_show.add_arguments(looked_at)
    looked_at.set_defaults(run_kind=data_show.run)


def run(args: argparse.Namespace) -> ExitCode:
    """Make a dataset, or show one."""
    code: ExitCode = args.run_kind(args)
    return code


def _run_digits(args: argparse.Namespace) -> ExitCode:
    """Make the dataset, and print what is in it."""
    path = write_digits(args.out, seed=args.seed, size=args.size)
    manifest = load_dataset_manifest(path)
    if not args.json:
        rows = ", ".join(f"{entry.rows} rows in {entry.path}" for entry in manifest.files)
        print(f"{path}: {rows}, {len(manifest.images)} images; identity {manifest.sha256}", file=sys.stderr)
    return answer([], as_json=args.json, manifest=str(path), sha256=manifest.sha256)
