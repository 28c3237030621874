"""A plot's forms: one drawing in both themes, without fonts, dates or a user's settings; and its table as CSV."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib as mpl
import pytest

from explicit_learning.report.plots.colours import THEMED, series
from explicit_learning.report.plots.plot import Plot, inline_svg, plot_csv, plot_png, plot_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HOSTILE = '</title><script>alert("1")</script>&\u2028'


def drawn(axes: Axes) -> None:
    axes.plot([0, 1, 2], [0.5, 0.25, 1.0], color=series(0).colour, label="one")
    axes.legend()


PLOT = Plot(
    name="some-plot.a",
    title=f"A title {HOSTILE}",
    description="Two, \"three\" & 'four'.",
    columns=("a (tokens)", "b"),
    rows=((1, 0.1 + 0.2), (2, None), (3, 'text, "quoted"\nline')),
    draw=drawn,
)


def test_the_csv_holds_every_number_in_full_and_nothing_where_there_is_none() -> None:
    rows = list(csv.reader(io.StringIO(plot_csv(PLOT).decode())))
    assert rows == [["a (tokens)", "b"], ["1", "0.30000000000000004"], ["2", ""], ["3", 'text, "quoted"\nline']]


def test_texts_that_are_markup_stay_texts() -> None:
    for text in (inline_svg(PLOT), plot_svg(PLOT).decode()):
        assert "<script" not in text
        assert re.search(r"<svg [^>]*role=\"img\" aria-label=", text)
        assert text.count("<title>") == 1


@pytest.mark.parametrize("name", ["$x_{$", r"$\foo$", "50 $ and 60 $", "\u4e2d\u6587", "\u0001"])
def test_a_name_is_drawn_as_it_is_whatever_its_characters(name: str) -> None:
    """Matplotlib takes text between dollar signs for formulas, and warns of characters that its font lacks."""

    def labelled(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], label=name)
        axes.set_yticks([0, 1], [name, name])
        axes.figure.legend(loc="outside lower center")

    plot = replace(PLOT, draw=labelled)
    assert inline_svg(plot).count("<title>") == 1
    assert plot_png(plot).startswith(b"\x89PNG")


def test_every_colour_of_a_page_is_a_variable_of_it() -> None:
    text = inline_svg(PLOT)
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", text))
    assert used <= {name for name, _ in THEMED.values()}
    assert {"--ink", "--line", "--series-1"} <= used
    assert re.findall(r"#[0-9a-f]{6}\b", text) == []
    assert series(0).colour in plot_svg(PLOT).decode()


def test_ids_begin_with_the_plots_name_and_references_lead_to_them() -> None:
    text = inline_svg(PLOT)
    ids = set(re.findall(r'\bid="([^"]+)"', text))
    assert all(name.startswith(f"{PLOT.name}-") for name in ids)
    referred = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert referred <= ids
    assert referred


def test_a_users_settings_and_the_clock_change_nothing() -> None:
    before = plot_svg(PLOT), plot_png(PLOT)
    with mpl.rc_context({"lines.linewidth": 9.0, "font.size": 30.0, "axes.facecolor": "red"}):
        assert (plot_svg(PLOT), plot_png(PLOT)) == before
        assert mpl.rcParams["font.size"] == 30.0
    assert b"<dc:date>" not in before[0]


def test_series_can_be_told_apart() -> None:
    styles = [series(index) for index in range(18)]
    assert len(set(styles)) == 18


@pytest.mark.parametrize("theme", [0, 1])
def test_series_have_the_contrast_that_graphics_need(theme: int) -> None:
    """WCAG 2.2, 1.4.11: 3 to 1 against the background; texts 4.5 to 1 (1.4.3)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    colours = {name: (light, dark)[theme] for light, (name, dark) in THEMED.items()}
    card = luminance(colours["--card"])
    for name, colour in colours.items():
        brighter, darker = sorted((luminance(colour), card), reverse=True)
        contrast = (brighter + 0.05) / (darker + 0.05)
        if name.startswith("--series"):
            assert contrast >= 3, name
        elif name in {"--ink", "--soft"}:
            assert contrast >= 4.5, name
