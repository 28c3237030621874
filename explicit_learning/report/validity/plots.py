"""Plots of the study: one for each study, with a panel for each measure and a dot for each seed's run."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.files.atomic import new_file
from explicit_learning.report.compare.measures import measure_order, measure_title, totals
from explicit_learning.report.validity.rows import BASE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.report.validity.rows import StudyRow

__all__ = ["write_plots"]

WIDTH, HEIGHT = 2.0, 0.26  # of a panel, and of a model's line in it. Unit: inches.
DOT, MEAN = "#7a8ba8", "#b3430a"
# Paths instead of text, drawn with the font that matplotlib ships: a machine without fonts draws the same.
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "explicit-learning",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 8,
}


def write_plots(folder: Path, rows: Sequence[StudyRow]) -> None:
    """Write ``STUDY.svg`` for each study: the same rows give the same bytes.

    Raises:
        OSError: If a file cannot be written.
    """
    studies: dict[str, list[StudyRow]] = defaultdict(list)
    for row in rows:
        studies[row.study].append(row)
    for study, found in studies.items():
        _write_plot(folder / f"{study}.svg", found)


def _write_plot(file: Path, rows: Sequence[StudyRow]) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for name, counts in row.measured().items():
            total = totals(counts)
            rates[name][row.arm].append(100 * total.right / total.rows)
    names = sorted(rates, key=measure_order)
    arms = [arm for arm in (BASE, *ARMS) if any(row.arm == arm for row in rows)][::-1]
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH * len(names) + 1.6, HEIGHT * len(arms) + 0.9), layout="constrained")
        for place, name in enumerate(names):
            axes = figure.add_subplot(1, len(names), place + 1)
            for line, arm in enumerate(arms):
                values = rates[name][arm]
                axes.plot(values, [line] * len(values), "o", color=DOT, markersize=3, alpha=0.7)
                axes.plot([fmean(values)], [line], "|", color=MEAN, markersize=10, markeredgewidth=2)
            axes.set_title(measure_title(name).replace(", ", ",\n"), fontsize=8)
            axes.set_xlim(-3, 103)
            axes.set_xlabel("%")
            axes.set_yticks(range(len(arms)), [arm.replace("_", " ") for arm in arms] if place == 0 else [])
            axes.grid(axis="x", alpha=0.3)
        with new_file(file) as stream:
            figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
