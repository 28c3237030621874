"""`el diff A B`: what differs in two runs, and from which step on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer, show
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import Refusal
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.typed_json import checked_json
from explicit_learning.verify.diff.comparison import diff_runs
from explicit_learning.verify.diff.text import diff_text
from explicit_learning.verify.opening import open_run

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from explicit_learning.errors import ExitCode
    from explicit_learning.files.tree import Tree

__all__ = ["add_arguments", "run"]

GATE = "diff"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("a", type=given_path, metavar="A", help="a run directory or an archive; complete or not")
    parser.add_argument("b", type=given_path, metavar="B", help="another one")
    add_json_argument(parser)


def _tree(path: Path) -> Tree:
    """Return a run's files.

    Raises:
        Refusal: If there is no such folder or archive, or it cannot be read.
    """
    try:
        return open_run(path)
    except OSError as error:
        raise Refusal(read_fault(error, path, gate=GATE, expected="a run directory or an archive of one")) from None


def run(args: argparse.Namespace) -> ExitCode:
    """Compare, and print what was found: the exit code is 0 whether the runs differ or not."""
    found = diff_runs(_tree(args.a), _tree(args.b))
    if not args.json:
        show(diff_text(found))
    document = checked_json(found, gate=GATE, file="(answer)") if args.json else None
    return answer([], as_json=args.json, identical=found.identical, diff=document)
