"""What the commands that write a page about runs have in common: which runs, where the page goes, and its plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.cli.paths import given_path
from explicit_learning.report.page.page import require_apart, require_page, require_plots

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

__all__ = ["add_page_arguments", "require_places"]


def add_page_arguments(parser: argparse.ArgumentParser, *, page: Path) -> None:
    """Declare the arguments.

    Args:
        parser: The command's parser.
        page: Where the page goes by default.
    """
    what = "run directories, archives of runs, or the folder of an experiment"
    parser.add_argument("runs", type=given_path, nargs="+", metavar="RUN", help=what)
    where = f"where the page goes (default {page}); an earlier page there is replaced"
    parser.add_argument("-o", dest="page", type=given_path, default=page, metavar="PAGE", help=where)
    plots = "also write each plot as SVG, PNG and CSV into this folder"
    parser.add_argument("--plots", type=given_path, metavar="DIR", help=plots)


def require_places(args: argparse.Namespace) -> None:
    """Refuse places that cannot hold the page or its plots, before anything is read.

    Raises:
        Refusal: As `require_page`, `require_plots` and `require_apart`.
    """
    require_page(args.page)
    if args.plots:
        require_plots(args.plots)
        require_apart(args.page, args.plots)
