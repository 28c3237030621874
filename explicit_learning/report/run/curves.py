"""Curves of runs against optimizer steps: which metrics share a plot, and how they are drawn.

With one run, a plot shows each of its metrics as a line. With several runs, it shows its first metric, with a line for
each run: two things that differ by run and by metric cannot be told apart in one plot.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from explicit_learning.report.plots.colours import SOFT, series
from explicit_learning.report.plots.plot import Plot
from explicit_learning.report.run.legends import legend_columns, legend_inches
from explicit_learning.report.run.memory import memory_plot
from explicit_learning.report.run.reading import TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from explicit_learning.report.plots.colours import Series
    from explicit_learning.report.run.reading import ReportedRun
    from explicit_learning.report.run.series import Bucket

__all__ = ["MOST_LINES", "curve_plots"]

MOST_LINES = 18  # that can be told apart; see `explicit_learning.report.plots.colours`
HEIGHT = 3.0  # of a plot without its legend. Unit: inches.
SHADE = 0.18
BELOW_ZERO = 0.04  # of the axis, so that a line at zero is seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A plot of metrics that belong together.

    Attributes:
        name: Its name in file names.
        title: What it shows.
        unit: What its values are.
        metrics: Patterns of metrics, the most important first.
        from_zero: Whether its values are shares, whose axis begins at zero.
    """

    name: str
    title: str
    unit: str
    metrics: tuple[str, ...]
    from_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line of a plot: a metric of a run."""

    run: str
    metric: str
    label: str
    style: Series
    buckets: Sequence[Bucket]


PANELS = (
    Panel(name="reward", title="Reward", unit="mean reward", metrics=("reward", "reward_std")),
    Panel(name="reward-parts", title="Parts of the reward", unit="mean", metrics=("rewards/*/mean",)),
    Panel(name="loss", title="Loss", unit="loss", metrics=("loss",)),
    Panel(
        name="loss-terms",
        title="Loss terms of the objective",
        unit="value before its coefficient",
        metrics=("papo/k3", "papo/*entropy*", "papo/*", "evi_po/shift", "evi_po/control", "evi_po/evidence"),
    ),
    Panel(name="kl", title="KL to the reference adapter", unit="nats", metrics=("kl",)),
    Panel(name="entropy", title="Entropy of sampled tokens", unit="nats", metrics=("entropy", "mean_entropy")),
    Panel(
        name="allowed-mass",
        title="Probability of allowed tokens before the constraint",
        unit="probability",
        metrics=("constraint/allowed_mass_mean", "constraint/allowed_mass_min"),
    ),
    Panel(
        name="lengths",
        title="Length of completions",
        unit="tokens",
        metrics=("completions/mean_length", "completions/min_length", "completions/max_length"),
    ),
    Panel(
        name="shares",
        title="Right, malformed and truncated completions, and groups of equal rewards",
        unit="share",
        metrics=(
            "completions/right_ratio",
            "completions/malformed_ratio",
            "completions/truncated_ratio",
            "frac_reward_zero_std",
        ),
        from_zero=True,
    ),
    Panel(
        name="clip",
        title="Clipped importance ratios",
        unit="share of tokens",
        metrics=("clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"),
        from_zero=True,
    ),
    Panel(name="token-accuracy", title="Token accuracy", unit="share", metrics=("mean_token_accuracy",)),
    Panel(name="gradient", title="Gradient norm before clipping", unit="norm", metrics=("grad_norm",)),
    Panel(name="learning-rate", title="Learning rate", unit="learning rate", metrics=("learning_rate",)),
)
COUNTS = ("*_groups", "*/forwards", "*/rows", "*/groups")  # no terms of a loss


def curve_plots(runs: Sequence[ReportedRun]) -> list[Plot]:
    """Return the plots of runs; those that no run has metrics for are left out.

    Args:
        runs: Runs of different names; of more than `MOST_LINES` the first ones are drawn, and the CSV has no others.
    """
    drawn = runs[:MOST_LINES]
    plots = [plot for panel in PANELS if (plot := _plot(panel, drawn)) is not None]
    plots += [plot for plot in (_tokens_plot(drawn), memory_plot(drawn), _pace_plot(drawn)) if plot is not None]
    return plots


def _names(panel: Panel, run: ReportedRun) -> list[str]:
    """Return the metrics of a run that a panel shows, in the panel's order."""
    found = [
        name
        for pattern in panel.metrics
        for name in sorted(run.metrics.series)
        if fnmatchcase(name, pattern) and not any(fnmatchcase(name, counts) for counts in COUNTS)
    ]
    return list(dict.fromkeys(found))


def _plot(panel: Panel, runs: Sequence[ReportedRun]) -> Plot | None:
    single = len(runs) == 1
    lines: list[_Line] = []
    for place, run in enumerate(runs):
        names = _names(panel, run)
        for number, name in enumerate(names if single else names[:1]):
            label, buckets = name if single else run.name, run.metrics.series[name]
            style = series(number if single else place)
            lines.append(_Line(run=run.name, metric=name, label=label, style=style, buckets=buckets))
    if not lines:
        return None
    metrics = ", ".join(dict.fromkeys(line.metric for line in lines))
    steps = max(max(run.metrics.window, run.files.plan.optimisation.logging_interval) for run in runs)
    of = "one optimizer step" if steps == 1 else f"up to {steps:,} optimizer steps"
    shaded = ", with their range shaded" if any(run.metrics.window > 1 for run in runs) else ""
    ends = "; ".join(f"{line.label} ends at {line.buckets[-1].mean:.4g}" for line in lines)
    return Plot(
        name=panel.name,
        title=panel.title if single or len(panel.metrics) == 1 else f"{panel.title}: {metrics}",
        description=f"Each point is of {of}{shaded}. {ends}.",
        columns=("run", "metric", "step", "mean", "lowest", "highest"),
        rows=tuple(
            (line.run, line.metric, bucket.step, bucket.mean, bucket.low, bucket.high)
            for line in lines
            for bucket in line.buckets
        ),
        draw=lambda axes: _draw(axes, panel, lines),
        height=HEIGHT + legend_inches([line.label for line in lines]),
    )


def _draw(axes: Axes, panel: Panel, lines: Sequence[_Line]) -> None:
    for line in lines:
        style, buckets = line.style, line.buckets
        steps, means = [bucket.step for bucket in buckets], [bucket.mean for bucket in buckets]
        marker = "o" if len(buckets) == 1 else None
        axes.plot(
            steps, means, color=style.colour, linestyle=style.line, marker=marker, label=line.label, linewidth=1.4
        )
        if any(bucket.count > 1 for bucket in buckets):
            lows, highs = [bucket.low for bucket in buckets], [bucket.high for bucket in buckets]
            axes.fill_between(steps, lows, highs, color=style.colour, alpha=SHADE, linewidth=0)
    axes.set_ylabel(panel.unit)
    if panel.from_zero:
        _, top = axes.get_ylim()
        axes.set_ylim(-BELOW_ZERO * top, top)
    _finish(axes, [line.label for line in lines])


def _finish(axes: Axes, labels: Sequence[str]) -> None:
    """Label the steps, which are whole numbers, and name the lines."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("optimizer step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.figure.legend(loc="outside lower center", ncols=legend_columns(labels))


def _tokens_plot(runs: Sequence[ReportedRun]) -> Plot | None:
    """Return the plot of sampled tokens against the budget."""
    lines = [
        (run.name, [(b.step, b.high) for b in sums], run.files.plan.budget.max_completion_tokens_per_run, series(place))
        for place, run in enumerate(runs)
        if (sums := run.metrics.series.get(TOKENS))
    ]
    if not lines:
        return None
    ceilings = sorted({ceiling for _, _, ceiling, _ in lines if ceiling is not None})
    names = [*(run_id for run_id, *_ in lines), *(f"budget: {ceiling:,}" for ceiling in ceilings)]

    def draw(axes: Axes) -> None:
        for run_id, points, _, style in lines:
            steps, tokens = zip(*points, strict=True)
            axes.plot(steps, tokens, color=style.colour, linestyle=style.line, label=run_id, linewidth=1.4)
        for ceiling in ceilings:
            axes.axhline(ceiling, color=SOFT, linestyle="--", linewidth=1.2, label=f"budget: {ceiling:,}")
        axes.set_ylabel("tokens")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        _finish(axes, names)

    ends = "; ".join(f"{run_id} sampled {points[-1][1]:,.0f}" for run_id, points, *_ in lines)
    budgets = ", ".join(f"{ceiling:,}" for ceiling in ceilings)
    return Plot(
        name="tokens",
        title="Sampled tokens against the budget",
        description=f"{ends}. Budget: {budgets or 'none'}.",
        columns=("run", "step", "tokens sampled so far", "budget"),
        rows=tuple((run_id, step, tokens, ceiling) for run_id, points, ceiling, _ in lines for step, tokens in points),
        draw=draw,
        height=HEIGHT + legend_inches(names),
    )


def _pace_plot(runs: Sequence[ReportedRun]) -> Plot | None:
    """Return the plot of seconds a step, between checkpoints."""
    lines = [(run.name, run.pace, series(place)) for place, run in enumerate(runs) if run.pace]
    if not lines:
        return None

    def draw(axes: Axes) -> None:
        for run_id, pace, style in lines:
            steps, seconds = [each.step for each in pace], [each.seconds for each in pace]
            axes.plot(steps, seconds, color=style.colour, linestyle=style.line, marker="o", markersize=3, label=run_id)
        axes.set_ylabel("seconds a step")
        axes.set_ylim(bottom=0)
        _finish(axes, [run_id for run_id, *_ in lines])

    ends = "; ".join(f"{run_id} takes {pace[-1].seconds:.3g} s at the end" for run_id, pace, _ in lines)
    return Plot(
        name="step-time",
        title="Seconds a step, between checkpoints",
        description=f"By the clock of the event log, which nothing proves. {ends}.",
        columns=("run", "step", "seconds a step"),
        rows=tuple((run_id, each.step, each.seconds) for run_id, pace, _ in lines for each in pace),
        draw=draw,
        height=HEIGHT + legend_inches([run_id for run_id, *_ in lines]),
    )
