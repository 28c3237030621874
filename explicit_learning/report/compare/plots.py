"""The plots of a comparison: reward against sampled tokens, and the differences in each measure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.data.keys import keyed_digest
from explicit_learning.report.compare.figures import interval_points, points
from explicit_learning.report.plots.colours import CARD, SOFT, series
from explicit_learning.report.plots.plot import Plot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from explicit_learning.report.compare.document import Comparison, Contrast, Curve, Measure
    from explicit_learning.report.plots.colours import Series

__all__ = ["comparison_plots", "difference_plot", "reward_plot"]

ARM_INCHES = 0.42
LEGEND_COLUMNS = 2
LEGEND_INCHES = 0.22
PERCENTAGE = 100
NOT_IN_NAMES = re.compile(r"[^a-z0-9_.-]")
# Colours belong to arms, so that all plots of all experiments show an arm alike.
_ORDER = sorted(ARMS, key=lambda arm: ARMS[arm].is_sft)


def comparison_plots(found: Comparison) -> list[Plot]:
    """Return the plots of a comparison: that of rewards, and one for each measure that is compared."""
    plots = [reward_plot(found)] if found.curves else []
    for measure in found.measures:
        contrasts = [contrast for contrast in found.contrasts if contrast.measure == measure.name]
        if contrasts:
            plots.append(difference_plot(measure, contrasts))
    return plots


def reward_plot(found: Comparison) -> Plot:
    """Return the plot of mean reward against sampled tokens, a thin line for each run and a thick one for each mean."""
    labels = _curve_labels(found.curves)
    rows = tuple(
        (curve.arm, "mean" if curve.seed is None else curve.seed, curve.seeds, point.step, point.tokens, point.reward)
        for curve in found.curves
        for point in curve.points
    )

    def draw(axes: Axes) -> None:
        for curve in found.curves:
            _draw_curve(axes, curve, label=labels.get((curve.arm, curve.seed)))
        axes.set_xlabel("sampled tokens")
        axes.set_ylabel("mean reward")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(_thousands)
        axes.figure.legend(loc="outside lower center", ncols=LEGEND_COLUMNS)

    ends = "".join(
        f" {curve.arm} ends at {curve.points[-1].reward:.2f} after {curve.points[-1].tokens:,.0f} tokens."
        for curve in found.curves
        if curve.seed is None and curve.points
    )
    of = "one optimizer step" if found.window == 1 else f"{found.window} optimizer steps"
    return Plot(
        name="reward",
        title="Mean reward against sampled tokens",
        description=f"Each point is of {of}. Thin lines are runs, thick lines the mean over an arm's seeds.{ends}",
        columns=("arm", "seed", "runs", "step", "sampled tokens", "mean reward"),
        rows=rows,
        draw=draw,
        width=7.0,
        height=3.6 + LEGEND_INCHES * -(-len(labels) // LEGEND_COLUMNS),
    )


def _curve_labels(curves: Sequence[Curve]) -> dict[tuple[str, int | None], str]:
    """Return the names of curves, one for each arm: of its mean, or of its first run if no run of it is compared."""
    labels: dict[tuple[str, int | None], str] = {
        (curve.arm, curve.seed): f"{curve.arm} ({curve.seeds} {'seed' if curve.seeds == 1 else 'seeds'})"
        for curve in curves
        if curve.seed is None
    }
    named = {arm for arm, _ in labels}
    for curve in curves:
        if curve.arm not in named:
            labels[curve.arm, curve.seed] = f"{curve.arm} (not compared)"
            named.add(curve.arm)
    return labels


def _draw_curve(axes: Axes, curve: Curve, *, label: str | None) -> None:
    style = _style(curve.arm)
    tokens, rewards = [point.tokens for point in curve.points], [point.reward for point in curve.points]
    is_mean = curve.seed is None
    axes.plot(
        tokens,
        rewards,
        color=style.colour,
        linestyle=style.line,
        linewidth=2.2 if is_mean else 0.9,
        alpha=1.0 if is_mean else 0.45,
        marker="o" if len(tokens) == 1 else None,
        label=label,
        zorder=3 if is_mean else 2,
    )


def _thousands(value: float, _: float) -> str:
    return f"{value:,.0f}"


def difference_plot(measure: Measure, contrasts: Sequence[Contrast]) -> Plot:
    """Return the plot of a measure's differences to the baseline, one line for each arm.

    Args:
        measure: The measure.
        contrasts: Its differences, at least one.
    """
    baseline = contrasts[0].baseline
    names = ("mean difference", "t interval, low", "t interval, high", "bootstrap, low", "bootstrap, high")
    columns = (
        "arm",
        "baseline",
        "seeds",
        *(f"{name} (percentage points)" for name in names),
        "difference of each seed",
    )
    rows = tuple(
        (
            contrast.arm,
            baseline,
            len(contrast.seeds),
            PERCENTAGE * contrast.mean,
            *_ends(contrast.t_interval),
            *_ends(contrast.bootstrap_interval),
            _by_seed(contrast),
        )
        for contrast in contrasts
    )

    def draw(axes: Axes) -> None:
        for place, contrast in enumerate(contrasts):
            _draw_contrast(axes, place, contrast)
        axes.axvline(0, color=SOFT, linewidth=1.2, zorder=1)
        axes.set_yticks(range(len(contrasts)), [contrast.arm for contrast in contrasts])
        axes.set_ylim(len(contrasts) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"difference to {baseline}, percentage points")
        axes.margins(x=0.08)
        low, high = axes.get_xlim()
        if high - low < 1:  # all differences are 0
            axes.set_xlim(-1, 1)

    texts = "; ".join(
        f"{contrast.arm} {points(contrast.mean)}, t interval {interval_points(contrast.t_interval)}, "
        f"bootstrap {interval_points(contrast.bootstrap_interval)}"
        for contrast in contrasts
    )
    return Plot(
        name=f"difference-{_file_name(measure.name)}",
        title=f"{measure.title}: differences to {baseline}",
        description=f"In percentage points, arm minus {baseline}: {texts}.",
        columns=columns,
        rows=rows,
        draw=draw,
        height=0.9 + ARM_INCHES * len(contrasts),
    )


def _draw_contrast(axes: Axes, place: int, contrast: Contrast) -> None:
    """Draw a difference: bootstrap as a thin line, t interval as a thick one, mean as a dot, and seeds as rings below.

    The dot is filled if the t interval is of 5 seeds or more.
    """
    style = _style(contrast.arm)
    ends, line = _in_points(contrast.bootstrap_interval), [place, place]
    axes.plot(ends, line, color=style.colour, linewidth=1.4, marker="|", markersize=9, zorder=2)
    if contrast.t_interval is not None:
        ends = _in_points(contrast.t_interval)
        axes.plot(ends, line, color=style.colour, linewidth=5, alpha=0.55, zorder=2, solid_capstyle="butt")
    rings: dict[str, Any] = {"linestyle": "", "marker": "o", "markeredgecolor": style.colour}
    values = _in_points(contrast.differences)
    if len(values) > 1:
        axes.plot(values, [place + 0.26] * len(values), **rings, markersize=3.5, markerfacecolor="none", zorder=3)
    inside = style.colour if contrast.grade == "primary" else CARD
    mean = PERCENTAGE * contrast.mean
    axes.plot([mean], [place], **rings, markersize=7.5, markeredgewidth=1.6, markerfacecolor=inside, zorder=4)


def _by_seed(contrast: Contrast) -> str:
    values = _in_points(contrast.differences)
    return " ".join(f"{seed}:{value}" for seed, value in zip(contrast.seeds, values, strict=True))


def _in_points(shares: Sequence[float]) -> list[float]:
    return [PERCENTAGE * share for share in shares]


def _ends(interval: tuple[float, float] | None) -> Sequence[float | None]:
    return (None, None) if interval is None else _in_points(interval)


def _style(arm: str) -> Series:
    return series(_ORDER.index(arm))


def _file_name(name: str) -> str:
    """Return a measure's name as a part of a file name; a digest keeps two that differ in other characters apart."""
    kind, _, state = name.partition(":")
    plain = NOT_IN_NAMES.sub("-", state)
    if plain != state:
        plain = f"{plain[:40]}-{keyed_digest('explicit-learning/plot-name/1', state).hex()[:8]}"
    return f"{kind}-{plain}" if plain else kind
