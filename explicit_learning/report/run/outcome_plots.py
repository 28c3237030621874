"""Plots of evaluations: rates with their intervals, calibration, and risk against coverage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.report.plots.colours import SOFT, series
from explicit_learning.report.plots.plot import Plot
from explicit_learning.report.run.legends import legend_columns, legend_inches
from explicit_learning.rundir.evaluation_summary import RATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from matplotlib.axes import Axes

    from explicit_learning.report.plots.plot import Cell

    Evaluations = Sequence[tuple[str, Mapping[str, Any]]]  # name and evaluation of each model

__all__ = ["outcome_plots"]

PERCENTAGE = 100
LINE_INCHES = 0.09
HEIGHT = 3.0  # of a plot without its legend. Unit: inches.


def outcome_plots(evaluations: Evaluations) -> list[Plot]:
    """Return the plots of evaluations side by side; none without one.

    Args:
        evaluations: Name of each model, and its evaluation as JSON.
    """
    if not evaluations:
        return []
    measured = [(name, found) for name, found in evaluations if found["risk_coverage"] is not None]
    return [_rates(evaluations), *([_calibration(measured), _risk(measured)] if measured else [])]


def _cells(evaluation: Mapping[str, Any]) -> Iterator[tuple[str, float, list[float], int]]:
    """Yield name, rate, interval and rows of each relation, and of each removal operator."""
    for relation, block in evaluation["relations"].items():
        parts = block["states"] if relation == "MISSING" else {"": block}
        for state, counts in parts.items():
            name = f"{relation}, {state}" if state else relation
            yield name, counts[RATES[relation]], counts["interval"], counts["rows"]


def _rates(evaluations: Evaluations) -> Plot:
    cells = {name: list(_cells(found)) for name, found in evaluations}
    names = list(cells)
    measures = list(dict.fromkeys(cell[0] for found in cells.values() for cell in found))

    def draw(axes: Axes) -> None:
        count = len(cells)
        for number, (name, found) in enumerate(cells.items()):
            style, offset = series(number), (number - (count - 1) / 2) * 0.7 / max(count, 1)
            for measure, _, (low, high), _ in found:
                line = measures.index(measure) + offset
                axes.plot([PERCENTAGE * low, PERCENTAGE * high], [line, line], color=style.colour, linewidth=1.6)
            places = [measures.index(measure) + offset for measure, *_ in found]
            rates = [PERCENTAGE * rate for _, rate, *_ in found]
            axes.plot(rates, places, linestyle="", marker=style.marker, markersize=5, color=style.colour, label=name)
        axes.set_yticks(range(len(measures)), [measure.replace(", ", "\n") for measure in measures])
        axes.set_ylim(len(measures) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(-2, 102)
        axes.set_xlabel("per cent")
        axes.figure.legend(loc="outside lower center", ncols=legend_columns(names))

    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, measure, number, rate, low, high)
        for name, found in cells.items()
        for measure, rate, (low, high), number in found
    )
    texts = "; ".join(
        f"{name}: " + ", ".join(f"{measure} {PERCENTAGE * rate:.0f} %" for measure, rate, *_ in found)
        for name, found in cells.items()
    )
    height = 1.2 + len(measures) * max(0.45, LINE_INCHES * len(cells) + 0.1)
    return Plot(
        name="outcomes",
        title="Answers to held-out questions",
        description=f"Right answers, or abstentions on MISSING, with Wilson's 95 % interval each. {texts}.",
        columns=("model", "measure", "questions", "rate", "interval, low", "interval, high"),
        rows=rows,
        draw=draw,
        height=height + legend_inches(names),
    )


def _calibration(evaluations: Evaluations) -> Plot:
    names = [name for name, _ in evaluations]

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", linewidth=1.0)
        for number, (name, found) in enumerate(evaluations):
            style, bins = series(number), found["calibration"]["bins"]
            means, rates = [each["confidence"] for each in bins], [each["rate"] for each in bins]
            axes.plot(means, rates, color=style.colour, linestyle=style.line, marker=style.marker, label=name)
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("mean confidence of a bin")
        axes.set_ylabel("share right")
        axes.figure.legend(loc="outside lower center", ncols=legend_columns(names))

    errors = "; ".join(
        f"{name} {found['calibration']['expected_calibration_error']:.3f}" for name, found in evaluations
    )
    return Plot(
        name="calibration",
        title="Calibration over FULL, CONTROL and MISSING questions",
        description=f"On the dashed line confidence is what it says. Expected calibration error: {errors}.",
        columns=("model", "bin, low", "bin, high", "questions", "mean confidence", "right", "share right"),
        rows=tuple(
            (name, *(each[key] for key in ("low", "high", "rows", "confidence", "right", "rate")))
            for name, found in evaluations
            for each in found["calibration"]["bins"]
        ),
        draw=draw,
        height=HEIGHT + legend_inches(names),
    )


def _risk(evaluations: Evaluations) -> Plot:
    names = [name for name, _ in evaluations]

    def draw(axes: Axes) -> None:
        for number, (name, found) in enumerate(evaluations):
            style, curve = series(number), found["risk_coverage"]
            coverage, risk = [p["coverage"] for p in curve["points"]], [p["risk"] for p in curve["points"]]
            axes.plot(coverage, risk, color=style.colour, linestyle=style.line, label=name)
            chosen = curve["chosen"]
            if chosen["risk"] is not None:
                place = [chosen["coverage"]], [chosen["risk"]]
                axes.plot(*place, linestyle="", marker=style.marker, markersize=7, color=style.colour)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("coverage: share of questions answered")
        axes.set_ylabel("risk: share of wrong answers")
        axes.figure.legend(loc="outside lower center", ncols=legend_columns(names))

    areas = "; ".join(f"{name} {found['risk_coverage']['area']:.3f}" for name, found in evaluations)
    keys = ("answered", "wrong", "coverage", "risk")
    curves = tuple(
        (name, kind, *(point[key] for key in keys))
        for name, found in evaluations
        for kind, points in (
            ("most confident", found["risk_coverage"]["points"]),
            ("chosen by the model", [found["risk_coverage"]["chosen"]]),
        )
        for point in points
    )
    return Plot(
        name="risk-coverage",
        title="Risk against coverage over FULL, CONTROL and MISSING questions",
        description=f"Markers: what the model chose to answer by itself. Area under the curve: {areas}.",
        columns=("model", "answers", *keys),
        rows=curves,
        draw=draw,
        height=HEIGHT + legend_inches(names),
    )
