"""`el report RUN…`: a page about one run or several."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer
from explicit_learning.cli.page_arguments import add_page_arguments, require_places
from explicit_learning.report.plots.plot import write_plots
from explicit_learning.report.run.reporting import report_runs

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode

__all__ = ["add_arguments", "run"]

PAGE = Path("report.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_page_arguments(parser, page=PAGE)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Read and verify the runs, and write the page: the exit code is 0 whether they verify or not."""
    require_places(args)
    report = report_runs(args.runs, args.page)
    if args.plots:
        write_plots(args.plots, report.plots)
    if not args.json:
        print(f"wrote {args.page} ({report.bytes / 1e6:.1f} MB)", file=sys.stderr)
    verified = {run.place: not run.verification.faults for run in report.runs}
    return answer([], as_json=args.json, page=str(args.page), verified=verified, left_out=list(report.left_out))
