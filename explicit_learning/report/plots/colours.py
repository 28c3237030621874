"""Colours of plots in both themes.

A plot is drawn in the colours of the light theme. In a page each of them becomes a CSS variable with the same meaning,
so that one drawing fits both themes. Series differ in hue and in lightness; from the seventh on they are dashed.

Source of the hues: M. Okabe and K. Ito, Color Universal Design, 2008, darkened or lightened until each has a contrast
of 3 to 1 against the page (WCAG 2.2, success criterion 1.4.11).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["CARD", "INK", "RULE", "SOFT", "THEMED", "Series", "series"]

INK: Final = "#1d1d1b"
SOFT: Final = "#595956"
RULE: Final = "#d3d3ce"
CARD: Final = "#fffffe"
_SERIES = (
    ("#1d6fae", "#6cb4ee"),
    ("#c44e00", "#ff9a52"),
    ("#00805c", "#3ecf9f"),
    ("#a8438a", "#f09ad3"),
    ("#8a6500", "#e6bf3c"),
    ("#5b5bd0", "#aeb0ff"),
)
# CSS variable and dark colour of each light colour: what a page defines, and what its plots refer to.
THEMED: Final[dict[str, tuple[str, str]]] = {
    INK: ("--ink", "#ececea"),
    SOFT: ("--soft", "#b0b0aa"),
    RULE: ("--line", "#43464b"),
    CARD: ("--card", "#212326"),
    **{light: (f"--series-{number}", dark) for number, (light, dark) in enumerate(_SERIES, start=1)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """How a series is drawn: matplotlib's names of its colour, line and marker."""

    colour: str
    line: str
    marker: str


_LINES = ("-", "--", ":")
_MARKERS = ("o", "s", "^")


def series(index: int) -> Series:
    """Return how the series with a number, from 0, is drawn; 18 can be told apart."""
    turn = index // len(_SERIES) % len(_LINES)
    return Series(colour=_SERIES[index % len(_SERIES)][0], line=_LINES[turn], marker=_MARKERS[turn])
