"""A comparison as one HTML page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors.invisible import escaped
from explicit_learning.files.typed_json import to_json
from explicit_learning.report.compare.contrasts import PRIMARY_SEEDS
from explicit_learning.report.compare.figures import (
    NOTHING,
    findings,
    interval_points,
    no_finding,
    number,
    p_text,
    points,
    reason_text,
    seeds_text,
    shows,
)
from explicit_learning.report.compare.plots import difference_plot, reward_plot
from explicit_learning.report.page.page import write_page
from explicit_learning.report.plots.plot import inline_svg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.report.compare.document import ArmFigures, Comparison, Contrast, Run

__all__ = ["write_comparison_page"]

TEMPLATE = Path(__file__).with_name("compare.html.jinja")
MOST_REASONS = 50
TITLE = "Comparison of arms"


def write_comparison_page(path: Path, found: Comparison) -> int:
    """Write the page, whole or not at all, and return its size in bytes.

    Args:
        path: The file, which `require_page` has let pass.
        found: The comparison.

    Raises:
        Refusal: If the file cannot be written.
    """
    times = Counter(run.run_id for run in found.runs)
    reasons = [escaped(reason_text(reason)) for reason in found.reasons]
    return write_page(
        path,
        TEMPLATE,
        title=TITLE,
        about=_about(found),
        comparable=found.comparable,
        findings=list(findings(found)),
        no_finding=no_finding(found),
        reasons=reasons[:MOST_REASONS],
        more_reasons=len(reasons[MOST_REASONS:]),
        remarks=found.remarks,
        left_out=[
            {"place": run.place, "reasons": [escaped(reason_text(reason)) for reason in run.reasons]}
            for run in found.left_out
        ],
        baseline=found.baseline,
        level=f"{100 * found.level:g}",
        draws=f"{found.draws:,}",
        primary_seeds=PRIMARY_SEEDS,
        titles=[measure.title for measure in found.measures],
        differences=list(_differences(found)),
        arms=[_arm(arm, found) for arm in found.arms],
        reward=_reward(found),
        runs=[_run(run, found, is_unique=times[run.run_id] == 1) for run in found.runs],
        verified=_verified(found),
        evaluated=_evaluated(found),
    )


def _evaluated(found: Comparison) -> list[tuple[str, str]]:
    if found.evaluated_by is None:
        return []
    fields: dict[str, Any] = to_json(found.evaluated_by)
    return [(name, "none: all base items" if value is None else str(value)) for name, value in fields.items()]


def _about(found: Comparison) -> str:
    arms = dict.fromkeys(run.arm for run in found.runs)
    seeds = sorted({run.seed for run in found.runs})
    runs = "1 run" if len(found.runs) == 1 else f"{len(found.runs):,} runs"
    return f"{runs} of {len(arms)} arms ({', '.join(arms)}); seeds {seeds_text(seeds)}"


def _verified(found: Comparison) -> str:
    """Return how many runs verify and who signed them, as a sentence."""
    holds = sum(run.faults == 0 for run in found.runs)
    signed = sum(run.signer is not None for run in found.runs)
    return (
        f"{holds:,} of {len(found.runs):,} runs verify; {signed:,} are signed, and no key was given to check by whom."
    )


def _differences(found: Comparison) -> Iterator[dict[str, Any]]:
    from markupsafe import Markup

    for measure in found.measures:
        contrasts = [contrast for contrast in found.contrasts if contrast.measure == measure.name]
        if contrasts:
            yield {
                "title": measure.title,
                "about": f"Counted: {measure.counts}; {measure.rows:,} in {measure.items:,} base items.",
                "svg": Markup(inline_svg(difference_plot(measure, contrasts))),  # noqa: S704 - drawn here, its texts escaped
                "rows": [_difference(contrast) for contrast in contrasts],
            }


def _difference(contrast: Contrast) -> dict[str, Any]:
    return {
        "arm": contrast.arm,
        "mean": points(contrast.mean),
        "shows": shows(contrast),
        "t_interval": interval_points(contrast.t_interval),
        "p": p_text(contrast.p_value),
        "adjusted": p_text(contrast.adjusted_p_value),
        "bootstrap": interval_points(contrast.bootstrap_interval),
        "seeds": len(contrast.seeds),
        "weak": contrast.grade == "weak",
    }


def _arm(arm: ArmFigures, found: Comparison) -> dict[str, Any]:
    figures = {figure.measure: figure for figure in arm.measures}
    cells = [
        {
            "mean": number(figures[measure.name].mean),
            "range": f"{number(figures[measure.name].smallest)} – {number(figures[measure.name].largest)}",
        }
        for measure in found.measures
    ]
    return {"arm": arm.arm, "seeds": len(arm.seeds), "cells": cells}


def _reward(found: Comparison) -> dict[str, Any] | None:
    from markupsafe import Markup

    if not found.curves:
        return None
    plot = reward_plot(found)
    what = "Training reward, which is of other rows than the figures above and, in most arms, of other views."
    of = (
        "Each point is one optimizer step." if found.window == 1 else f"Each point is the mean of {found.window} steps."
    )
    return {"about": f"{what} {of} Thin lines: runs. Thick lines: mean over seeds.", "svg": Markup(inline_svg(plot))}  # noqa: S704 - as above


def _run(run: Run, found: Comparison, *, is_unique: bool) -> dict[str, Any]:
    figures = {figure.measure: figure for figure in run.measures}
    cells = []
    for measure in found.measures:
        figure = figures.get(measure.name)
        if figure is None:
            cells.append({"rate": NOTHING, "interval": ""})
        else:
            low, high = figure.interval
            cells.append({"rate": number(figure.rate), "interval": f"[{100 * low:.0f}, {100 * high:.0f}]"})
    steps = "" if run.steps == run.planned_steps else f", step {run.steps:,} of {run.planned_steps:,}"
    return {
        "name": run.run_id if is_unique else run.place,
        "seed": run.seed,
        "status": f"{run.status}{steps}",
        "compared": run.compared,
        "why": "an SFT stage" if run.stage == "sft" else "not compared",
        "faults": run.faults,
        "verified": "yes" if run.faults == 0 else f"no: {run.faults} {'fault' if run.faults == 1 else 'faults'}",
        "cells": cells,
        "tokens": NOTHING if run.sampled_tokens is None else f"{run.sampled_tokens:,}",
    }
