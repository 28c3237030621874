"""The page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.typed_json import to_json
from explicit_learning.report.compare.comparability import fault_text
from explicit_learning.report.outcomes import outcomes_of
from explicit_learning.report.page.page import write_page
from explicit_learning.report.plots.plot import inline_svg
from explicit_learning.report.run.curves import MOST_LINES, curve_plots
from explicit_learning.report.run.outcome_plots import outcome_plots
from explicit_learning.report.run.series import LARGEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from explicit_learning.report.outcomes import Outcome
    from explicit_learning.report.plots.plot import Plot
    from explicit_learning.report.run.reading import ReportedRun
    from explicit_learning.report.run.samples import Sample
    from explicit_learning.rundir.evaluation import Evaluation
    from explicit_learning.rundir.launches import Machine

__all__ = ["MOST_WITH_SAMPLES", "report_plots", "write_report_page"]

TEMPLATE = Path(__file__).with_name("report.html.jinja")
MOST_WITH_SAMPLES = 12  # runs; samples of more would make the page too large to open
MOST_FAULTS = 20
NOTHING = "–"
DOWNSAMPLED = (
    "Curves show means of up to {window:,} steps each, and the smallest and largest value among them as a shade."
)
ORDER = ("base", "initial", "final", "best", "other")
NAMES = {
    "base": "base model",
    "initial": "initial adapter",
    "final": "final adapter",
    "best": "best checkpoint",
    "other": "another adapter",
}
KINDS = {
    "best": "highest reward",
    "worst": "lowest reward",
    "drawn": "drawn at random, by a key that depends on the run alone",
}


def report_plots(runs: Sequence[ReportedRun]) -> list[Plot]:
    """Return all plots of a page about runs."""
    return [*outcome_plots(_evaluations(runs)), *curve_plots(runs)]


def write_report_page(
    path: Path, runs: Sequence[ReportedRun], plots: Sequence[Plot], *, left_out: Sequence[str]
) -> int:
    """Write the page, whole or not at all, and return its size in bytes.

    Args:
        path: The file, which `explicit_learning.report.page.page.require_page` has let pass.
        runs: The runs, at least one.
        plots: Their plots.
        left_out: Which runs could not be read and why, in words.

    Raises:
        Refusal: If the file cannot be written.
    """
    from markupsafe import Markup

    title = f"Run {runs[0].name}" if len(runs) == 1 else f"{len(runs):,} runs"
    names = {plot.name for plot in outcome_plots(_evaluations(runs))}

    def shown(plot: Plot) -> dict[str, Any]:
        return {"title": plot.title, "svg": Markup(inline_svg(plot))}  # noqa: S704 - drawn here, its texts escaped

    return write_page(
        path,
        TEMPLATE,
        title=title,
        verdict=_verdict(runs),
        left_out=left_out,
        single=len(runs) == 1,
        rows=[_row(run) for run in runs],
        outcomes=[shown(plot) for plot in plots if plot.name in names],
        curves=[shown(plot) for plot in plots if plot.name not in names],
        undrawn=max(0, len(runs) - MOST_LINES),
        most_lines=MOST_LINES,
        details=[_details(number, run) for number, run in enumerate(runs, start=1)],
    )


def _verdict(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """Return whether runs verify, as one sentence at the top."""
    bad = [run for run in runs if run.verification.faults]
    unfinished = [run for run in runs if run.files.marker is None]
    signed = sum(run.verification.signed for run in runs)
    if len(runs) == 1:
        what = "This run does not verify" if bad else "This run verifies"
        signature = (
            f"its statement is signed by {runs[0].verification.signer}" if signed else "its statement is not signed"
        )
        if unfinished:
            what, signature = f"{what}, as far as it has come", "it is not complete, so it has no statement"
        return {"good": not bad, "text": f"{what}; {signature}."}
    counts = f"{len(runs) - len(bad):,} of {len(runs):,} runs verify"
    return {"good": not bad, "text": f"{counts}; {signed:,} are signed; {len(unfinished):,} are not complete."}


def _evaluations(runs: Sequence[ReportedRun]) -> list[tuple[str, dict[str, Any]]]:
    """Return evaluations with their names: of one run all that it has, of several the final adapters'."""
    if len(runs) == 1:
        found = sorted(runs[0].evaluations, key=lambda each: (ORDER.index(each.record.which), each.record.name))
        names = [each.record.which for each in found]
        return [
            (_name(each.record, unique=names.count(each.record.which) == 1), to_json(each.record)) for each in found
        ]
    finals = [(run.name, _final(run)) for run in runs]
    return [(name, to_json(record)) for name, record in finals if record is not None][:MOST_LINES]


def _name(record: Evaluation, *, unique: bool) -> str:
    """Return what a model is called, and how its evaluation differs from a usual one."""
    limit = [] if record.limit is None else [f"{record.limit} items"]
    rows = ["other rows"] if record.rows_from == "other" else []
    more = [*limit, *rows, *([] if unique else [record.engine, record.name[:6]])]
    return f"{NAMES[record.which]} ({', '.join(more)})" if more else NAMES[record.which]


def _row(run: ReportedRun) -> dict[str, Any]:
    plan, marker, manifest = run.files.plan, run.files.marker, run.files.manifest
    faults, tokens = len(run.verification.faults), None if marker is None else marker.counts.sampled_tokens
    rates = {} if (final := _final(run)) is None else dict(_rates_of(final))
    return {
        "run_id": run.name,
        "arm": plan.arm,
        "seed": plan.seed,
        "status": f"{manifest.status}{' (smoke)' if plan.run_mode == 'smoke' else ''}",
        "steps": f"{run.files.steps:,} of {plan.optimisation.max_steps:,}",
        "verified": "yes" if not faults else f"no: {faults} {'fault' if faults == 1 else 'faults'}",
        "faults": faults,
        "tokens": NOTHING if tokens is None else f"{tokens:,}",
        "full": rates.get("FULL", NOTHING),
        "control": rates.get("CONTROL", NOTHING),
        "missing": rates.get("MISSING", NOTHING),
        "substitute": rates.get("SUBSTITUTE", NOTHING),
    }


def _final(run: ReportedRun) -> Evaluation | None:
    """Return the evaluation of a run's final adapter on all of the plan's rows; ``None`` if it has none."""
    records = [found.record for found in run.evaluations if found.record.which == "final"]
    whole = [record for record in records if record.limit is None and record.rows_from == "plan"]
    return min(whole, key=lambda record: (record.engine, record.name), default=None)


def _rates_of(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    for relation, block in evaluation.relations.items():
        yield relation, _outcome_text(block["right"] / block["rows"])


def _outcome_text(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def _details(number: int, run: ReportedRun) -> dict[str, Any]:
    verification, faults = run.verification, run.verification.faults
    return {
        "number": number,
        "run_id": run.name,
        "place": run.place,
        "identity": list(_identity(run)),
        "checked": verification.checked,
        "not_checked": verification.not_checked,
        "limits": verification.limits,
        "signer": "unsigned" if verification.signer is None else verification.signer,
        "faults": [escaped(fault_text(fault)) for fault in faults[:MOST_FAULTS]],
        "more_faults": max(0, len(faults) - MOST_FAULTS),
        "figures": list(_figures(run)),
        "outcomes": _outcome_table(run),
        "evaluations": len(run.evaluations),
        "no_evaluation": not run.evaluations and not run.evaluations_left_out,
        "samples": [
            {"title": KINDS[kind], "samples": [_sample(sample) for sample in samples]}
            for kind, samples in run.samples.items()
            if samples
        ],
        "rewards": [{"reward": reward, "count": f"{count:,}"} for reward, count in run.rewards.items()],
        "remarks": [*run.remarks, *_remarks(run)],
    }


def _identity(run: ReportedRun) -> Iterator[tuple[str, str]]:
    """Yield what a run is made of."""
    plan, marker = run.files.plan, run.files.marker
    yield "run id", plan.run_id
    yield "arm", f"{plan.arm} ({ARMS[plan.arm].trainer})"
    yield "seed", str(plan.seed)
    yield "plan", plan.frozen_config_sha256
    yield "base model", plan.model.snapshot_sha256
    yield "initial adapter", plan.initial_adapter.sha256 if plan.initial_adapter else "none"
    yield "dataset", plan.data.dataset_manifest.sha256
    yield "evaluation rows", plan.data.evaluation_manifest.sha256
    yield "environment lock", plan.environment_lock_sha256
    yield "determinism", plan.determinism
    yield "code when the plan was frozen", _commit(plan.code_commit, dirty=plan.code_dirty)
    if marker is not None:
        yield "final adapter (tensors)", marker.identities.final_adapter_tensors_sha256
    if run.files.launches:
        yield "code", _of_launches(run, lambda node: _commit(node.code.commit, dirty=node.code.dirty))
        yield "image", _of_launches(run, _image)
        yield "processor", _of_launches(run, lambda node: str(node.platform.hardware["cpu"]["model"]))


def _commit(commit: str, *, dirty: bool) -> str:
    return f"{commit}{' with uncommitted changes' if dirty else ''}"


def _image(node: Machine) -> str:
    digests = [f"{name} {each.value} ({each.known_by})" for name, each in node.image.digests.items() if each.value]
    return ", ".join(digests) or "none is declared or measured"


def _of_launches(run: ReportedRun, text_of: Callable[[Machine], str]) -> str:
    """Return a text that holds for all machines of all launches, or each text with the launches that it holds for."""
    found: dict[str, dict[int, None]] = {}
    for launch in run.files.launches:
        for node in launch.start.nodes:
            found.setdefault(escaped(text_of(node)), {})[launch.start.number + 1] = None
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"launch {', '.join(map(str, numbers))}: {text}" for text, numbers in found.items())


def _figures(run: ReportedRun) -> Iterator[tuple[str, str]]:
    """Yield the figures of a run's marker, in words."""
    plan, marker = run.files.plan, run.files.marker
    yield "launches", f"{len(run.files.launches):,}"
    if marker is None:
        yield "optimizer steps", f"{run.files.steps:,} of {plan.optimisation.max_steps:,} so far"
        return
    counts, memory, compute = marker.counts, marker.memory, marker.compute
    yield "optimizer steps", f"{counts.optimizer_steps:,}"
    pairs = (
        ("completions", counts.completions),
        ("sampled tokens", counts.sampled_tokens),
        ("token budget", counts.sampled_token_ceiling),
        ("loss tokens of SFT", counts.sft_loss_tokens),
        ("groups of equal rewards", counts.zero_variance_groups),
        ("malformed completions", counts.malformed),
        ("truncated completions", counts.truncated),
        ("completions sampled twice after interruptions", counts.discarded_completions),
    )
    yield from ((name, f"{value:,}") for name, value in pairs if value is not None)
    peaks = ", ".join(f"{peak / 2**20:,.0f} MiB" for peak in memory.peak_bytes_by_rank)
    yield "peak memory of each rank", peaks
    yield "device seconds", f"{compute.device_seconds:,.1f}"
    yield "forwards", f"{compute.forwards:,}"


def _outcome_table(run: ReportedRun) -> dict[str, Any]:
    """Return all measures of a run's evaluations, models side by side."""
    columns = [(name, {outcome.name: outcome for outcome in outcomes_of(found)}) for name, found in _evaluations([run])]
    names = dict.fromkeys(name for _, column in columns for name in column)
    return {
        "models": [escaped(name) for name, _ in columns],
        "rows": [{"name": name, "cells": [_cell(column.get(name)) for _, column in columns]} for name in names],
    }


def _cell(outcome: Outcome | None) -> dict[str, str]:
    if outcome is None or outcome.value is None:
        return {"value": NOTHING, "interval": ""}
    interval = ""
    if outcome.interval is not None:
        low, high = outcome.interval
        interval = f"[{100 * low:.0f}, {100 * high:.0f}]"
    return {"value": _outcome_text(outcome.value), "interval": interval}


def _sample(sample: Sample) -> dict[str, Any]:
    row = sample.row
    where = f"step {row.optimizer_step + 1}, slot {row.slot_id}, visit {row.visit}, completion {row.generation}"
    state = f" ({sample.state})" if sample.state else ""
    return {
        "completion": escaped(row.completion_text),
        "question": None if sample.question is None else escaped(sample.question),
        "gold": escaped(row.gold) or "(abstain)",
        "reward": f"{row.total:g}",
        "parts": ", ".join(f"{name} {value:g}" for name, value in row.components.items()),
        "reason": row.reason,
        "where": escaped(where),
        "view": escaped(f"{row.relation} slot, view {row.view_id}{state}"),
        "pictures": sample.pictures,
    }


def _remarks(run: ReportedRun) -> Iterator[str]:
    if run.evaluations_left_out:
        yield f"Evaluations that are not finished or cannot be read, and are left out: {run.evaluations_left_out:,}"
    if run.metrics.window > 1:
        yield f"The run has {run.metrics.rows:,} rows of metrics. {DOWNSAMPLED.format(window=run.metrics.window)}"
    for name, count in run.metrics.left_out.items():
        what = "value is" if count == 1 else "values are"
        yield f"{escaped(name)}: {count:,} {what} not finite or beyond {LARGEST:g}, and left out"
