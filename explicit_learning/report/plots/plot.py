"""A plot and its forms: inline SVG for a page, and SVG, PNG and CSV as files.

A plot is a table and a function that draws it. The CSV is that table, so whoever doubts a plot has its numbers. Text is
drawn as paths from the font that matplotlib ships, so a machine without fonts draws the same; what a screen reader
says is the title and the description. No date, no version and no random id is written: the same table gives the
same bytes.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from explicit_learning.errors import Refusal
from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.os_errors import write_fault
from explicit_learning.report.plots.colours import INK, RULE, SOFT, THEMED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Plot", "inline_svg", "plot_csv", "plot_png", "plot_svg", "write_plots"]

Cell = str | int | float | None

DPI = 150
POINTS = (
    10  # size of text; a plot of 5.2 inches is 500 CSS pixels wide, so on a phone it is shown at 7.5 points or more
)
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
IDS = re.compile(r'(\bid="|href="#|url\(#)')
ROOT = re.compile(r"<svg [^>]*>")
SIZE = re.compile(r'viewBox="[^"]*"')
COLOURS = re.compile("|".join(THEMED))
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "path",
    "font.family": ["DejaVu Sans"],
    "font.size": POINTS,
    "axes.titlesize": POINTS,
    "axes.labelsize": POINTS,
    "axes.facecolor": "none",
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "path.simplify": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot.

    Attributes:
        name: Stem of its files' names and prefix of its ids: lower-case letters, digits, and ``_``, ``.``, ``-``.
        title: What it shows, as a phrase.
        description: What a person who does not see it must know, as sentences.
        columns: Names of the table's columns, with units.
        rows: The table.
        draw: Draws the table.
        width: Width in inches.
        height: Height in inches.
    """

    name: str
    title: str
    description: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    draw: Callable[[Axes], None]
    width: float = 5.2
    height: float = 3.4


def plot_csv(plot: Plot) -> bytes:
    """Return the table as CSV (RFC 4180, with line feeds): numbers in full, and nothing where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(plot.columns)
    writer.writerows(plot.rows)
    return text.getvalue().encode()


def plot_png(plot: Plot) -> bytes:
    """Return the plot as a PNG in the light theme's colours, on white, at 150 dots an inch."""
    return _drawn(plot, "png", {"Software": None})


def plot_svg(plot: Plot) -> bytes:
    """Return the plot as an SVG file in the light theme's colours, with a title and a description."""
    return ROOT.sub(lambda root: _named(plot, root[0]), _svg(plot), count=1).encode()


def inline_svg(plot: Plot) -> str:
    """Return the plot as an SVG element of a page: its colours are the page's CSS variables, its ids are its own."""
    text = _svg(plot)
    text = text[text.index("<svg ") :]
    text = ROOT.sub(lambda root: _named(plot, f'<svg class="plot" {_box(root[0])}>'), text, count=1)
    text = IDS.sub(lambda found: f"{found[1]}{plot.name}-", text)
    return COLOURS.sub(lambda found: f"var({THEMED[found[0]][0]})", text)


def write_plots(folder: Path, plots: Sequence[Plot]) -> None:
    """Write every plot as SVG, PNG and CSV into a folder, which is made; files of the same names are replaced.

    Raises:
        Refusal: With exit code 73 if the folder cannot be made, or 74 if a file cannot be written.
    """
    forms = {"svg": plot_svg, "png": plot_png, "csv": plot_csv}
    path = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for plot in plots:
            for ending, form in forms.items():
                path = folder / f"{plot.name}.{ending}"
                write_bytes(path, form(plot))
    except OSError as error:
        raise Refusal(write_fault(error, path)) from None


def _named(plot: Plot, root: str) -> str:
    """Return the start of an SVG element with a role and a name, which screen readers read."""
    if NAME.fullmatch(plot.name) is None:
        raise AssertionError(f"not a name of a plot: {plot.name!r}")
    label = quoteattr(f"{plot.title}. {plot.description}")
    return f'{root[:-1]} role="img" aria-label={label}>\n<title>{escape(plot.title)}</title>'


def _box(root: str) -> str:
    found = SIZE.search(root)
    if found is None:
        raise AssertionError("an SVG without a viewBox")
    return found[0]


def _svg(plot: Plot) -> str:
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    return _drawn(plot, "svg", nothing).decode()


def _drawn(plot: Plot, form: str, metadata: dict[str, None]) -> bytes:
    """Draw a plot; only this thread's settings of matplotlib are changed, and only here.

    A character that DejaVu Sans lacks is drawn as a box: the name stands in full in the description and in the CSV.
    """
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        mpl.rcdefaults()  # a user's own settings do not change what is drawn
        settings: Any = SETTINGS | {"svg.hashsalt": plot.name}
        mpl.rcParams.update(settings)
        figure = _figure(plot)
        data = io.BytesIO()
        facecolor = "white" if form == "png" else "none"
        figure.savefig(data, format=form, dpi=DPI, metadata=metadata, facecolor=facecolor)
    return data.getvalue()


def _figure(plot: Plot) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(plot.width, plot.height), layout="constrained")
    plot.draw(figure.add_subplot())
    return figure
