"""`el init`: a folder to start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer, show
from explicit_learning.cli.paths import given_path
from explicit_learning.freeze.starter import write_starter

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from explicit_learning.errors import ExitCode

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", type=given_path, metavar="DIR", help="folder to make")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Make the folder, and print how to go on."""
    folder: Path = args.folder
    write_starter(folder)
    if not args.json:
        show(f"{folder}: drafts, an experiment and a sample source. Go on with {folder / 'README.md'}")
    return answer([], as_json=args.json, folder=str(folder))
