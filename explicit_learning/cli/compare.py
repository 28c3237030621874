"""`el compare RUN… | EXPERIMENT`: arms side by side, on one page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer, show
from explicit_learning.cli.page_arguments import add_page_arguments, require_places
from explicit_learning.files.typed_json import checked_json
from explicit_learning.report.compare.comparing import DEFAULT_BASELINE, compare_runs
from explicit_learning.report.compare.page import write_comparison_page
from explicit_learning.report.compare.plots import comparison_plots
from explicit_learning.report.compare.text import comparison_text
from explicit_learning.report.plots.plot import write_plots

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode

__all__ = ["add_arguments", "run"]

GATE = "compare"
PAGE = Path("compare.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_page_arguments(parser, page=PAGE)
    baseline = f"the arm that the others are compared with (default {DEFAULT_BASELINE}, else the first one)"
    parser.add_argument("--baseline", metavar="ARM", help=baseline)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Compare, write the page and print the differences: the exit code is 0 whether the runs are comparable or not."""
    require_places(args)
    found = compare_runs(args.runs, baseline=args.baseline)
    document = checked_json(found, gate=GATE, file="(answer)")
    size = write_comparison_page(args.page, found)
    if args.plots:
        write_plots(args.plots, comparison_plots(found))
    if not args.json:
        show(comparison_text(found))
        print(f"wrote {args.page} ({size / 1e6:.1f} MB)", file=sys.stderr)
    return answer([], as_json=args.json, comparable=found.comparable, page=str(args.page), comparison=document)
