"""Whether the rows of a run's log can be those of its plan: their steps, their metrics, and what else follows from it.

What the trainers measure (losses, norms, entropies) nothing can compute again; but which metrics an arm logs at which
steps is fixed, and so are the learning rates. The scores of sampled completions are compared with the traces elsewhere
(`explicit_learning.verify.accounting.logged_scores`).
"""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.errors import Context, found_text
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.learning_rate import learning_rate
from explicit_learning.plan.log_steps import log_steps
from explicit_learning.plan.validation import is_validation_step
from explicit_learning.rundir import layout
from explicit_learning.verify.accounting.logged_scores import FLAT_SHARE, SCORED, TOKENS, whole_number
from explicit_learning.verify.contradictions import contradiction
from explicit_learning.verify.validation import OF_RELATIONS, OF_VALIDATION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker
    from explicit_learning.rundir.rank_report import AgreementProbe

    Row = Mapping[str, Any]

__all__ = ["log_faults", "metrics_of_row"]

CONTEXT = Context(gate="log", fix="restore the run directory from a copy: training under this plan logs other rows")

OF_EVERY_STEP = frozenset({"step", "loss", "grad_norm", "learning_rate", "entropy"})
OF_SFT = frozenset({"mean_token_accuracy", TOKENS})
OF_POLICY = frozenset(f"clip_ratio/{name}" for name in ("low_mean", "low_min", "high_mean", "high_max", "region_mean"))
OF_TRAINER: Mapping[str, frozenset[str]] = {
    "papo": frozenset(f"papo/{name}" for name in ("k3", "masked_entropy", "original_entropy", "clamped_share")),
    "evi_po": frozenset(
        f"evi_po/{name}"
        for name in (
            "shift",
            "control",
            "evidence",
            "delta",
            "views_met",
            "groups",
            "shift_groups",
            "control_groups",
            "evidence_groups",
            "rows",
            "forwards",
        )
    ),
}
OF_CYCLE = frozenset({*SCORED, FLAT_SHARE, TOKENS})
OF_PROBE = frozenset({"probe/mean", "probe/max"})
# What is logged of a cycle's samples if they can be compared with the trainer, or if the sampler tells it.
OF_COMPARISON = (
    frozenset({"agreement/mean", "agreement/max"}),
    frozenset({"constraint/allowed_mass_mean", "constraint/allowed_mass_min"}),
)
SHARES = (*OF_POLICY, "mean_token_accuracy", "papo/clamped_share", "evi_po/views_met")
NEVER_NEGATIVE = (*SHARES, "grad_norm", "entropy", "agreement/mean", "agreement/max")
SINGLE_PRECISION = 1e-6  # by how much a share of many tokens can be above 1

_different = partial(contradiction, CONTEXT)


def metrics_of_row(plan: Plan, before: int, step: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return the metrics that a row of a log must have, and those that it may have besides.

    Args:
        plan: The plan.
        before: The step of the row before; 0 for the first.
        step: The row's step.
    """
    every, relations = OF_EVERY_STEP, frozenset[str]()
    if is_validation_step(plan, step):
        every, relations = every | OF_VALIDATION, OF_RELATIONS
    if plan.objective is None:
        return every | OF_SFT, relations
    wanted = every | OF_POLICY | OF_TRAINER.get(ARMS[plan.arm].trainer, frozenset())
    if plan.objective.beta != 0:
        wanted |= {"kl"}
    if not any(begun % Geometry.of(plan).iterations == 0 for begun in range(before, step)):
        return wanted, OF_PROBE | relations  # nothing was sampled in between
    return wanted | OF_CYCLE, OF_PROBE.union(relations, *OF_COMPARISON)


def log_faults(tree: Tree, plan: Plan, marker: CompletionMarker) -> Iterator[Fault]:
    """Yield everything in a complete run's log that its plan and its marker contradict.

    Args:
        tree: The run's files.
        plan: The plan.
        marker: The completion marker.
    """
    file, before = tree.place(layout.COMPLETION_MARKER), 0
    steps, expected = [row["step"] for row in marker.log_history], log_steps(plan.optimisation)
    if steps != expected:
        source = f"the steps after which the plan logs, of {plan.optimisation.max_steps}"
        yield from _different(file, "/log_history", steps, expected, source)
        return
    for number, row in enumerate(marker.log_history):
        pointer = f"/log_history/{number}"
        yield from _metrics(file, pointer, plan, before, row)
        yield from _values(file, pointer, plan, marker, row)
        yield from _probes(file, pointer, marker, before, row)
        before = row["step"]
    if plan.objective is None:
        yield from _sft_tokens(file, plan, marker)


def _metrics(file: str, pointer: str, plan: Plan, before: int, row: Row) -> Iterator[Fault]:
    """A row has exactly the metrics that the plan's trainer logs."""
    wanted, allowed = metrics_of_row(plan, before, row["step"])
    for name in sorted(wanted - row.keys()):
        yield CONTEXT.fault(file=file, pointer=_at(pointer, name), found="no such metric", expected="a number")
    for name in sorted(row.keys() - wanted - allowed):
        expected = f"no such metric: the arm {plan.arm} logs none at this step"
        yield CONTEXT.fault(file=file, pointer=_at(pointer, name), found=found_text(row[name]), expected=expected)
    for pair in OF_COMPARISON:
        for name in sorted(pair - row.keys() if pair & row.keys() else ()):
            expected = f"a number, beside {min(pair - {name})}"
            yield CONTEXT.fault(file=file, pointer=_at(pointer, name), found="no such metric", expected=expected)
    for name in sorted(row.keys() & {*OF_EVERY_STEP, *NEVER_NEGATIVE}):
        least, most = 0.0 if name in NEVER_NEGATIVE else -math.inf, 1 + SINGLE_PRECISION if name in SHARES else math.inf
        if not isinstance(row[name], (int, float)) or not least <= row[name] <= most:
            expected = f"a number from {least:g} to 1" if name in SHARES else f"a number of at least {least:g}"
            yield CONTEXT.fault(file=file, pointer=_at(pointer, name), found=found_text(row[name]), expected=expected)


def _values(file: str, pointer: str, plan: Plan, marker: CompletionMarker, row: Row) -> Iterator[Fault]:
    """The learning rate is that of the plan's schedule; the steps without a gradient are those of the marker."""
    rate, expected = row.get("learning_rate"), learning_rate(plan.optimisation, row["step"])
    rounding = plan.optimisation.learning_rate * 1e-14  # of a cosine, which machines round differently
    if isinstance(rate, (int, float)) and not math.isclose(rate, expected, rel_tol=1e-12, abs_tol=rounding):
        source = f"the learning rate of step {row['step']} under the plan's {plan.optimisation.lr_scheduler} schedule"
        told = f"{found_text(expected)}, {source}"
        yield CONTEXT.fault(file=file, pointer=f"{pointer}/learning_rate", found=found_text(rate), expected=told)
    norm, has_none = row.get("grad_norm"), row["step"] in marker.zero_gradient_steps
    if isinstance(norm, (int, float)) and (norm == 0) != has_none:
        told = f"{'0' if has_none else 'more than 0'}, as zero_gradient_steps says"
        yield CONTEXT.fault(file=file, pointer=f"{pointer}/grad_norm", found=found_text(norm), expected=told)
    agreement, largest = marker.sampler_agreement, row.get("agreement/max")
    if agreement is not None and isinstance(largest, (int, float)) and not largest <= (agreement.largest or 0.0):
        told = f"at most {found_text(agreement.largest)}, the largest of sampler_agreement"
        at = _at(pointer, "agreement/max")
        yield CONTEXT.fault(file=file, pointer=at, found=found_text(largest), expected=told)


def _probes(file: str, pointer: str, marker: CompletionMarker, before: int, row: Row) -> Iterator[Fault]:
    """Each row tells the mean of the probes since the row before, which the marker has one by one."""
    probes = () if marker.rollouts is None else marker.rollouts.probes
    since = [probe for probe in probes if before < max(probe.step, 1) <= row["step"]]
    for name, value in PROBED.items():
        found, expected = row.get(f"probe/{name}"), fmean(map(value, since)) if since else None
        is_same = found is expected if None in {found, expected} else math.isclose(found or 0, expected or 0)
        if not is_same:
            source = f"the mean of the probes after steps {', '.join(str(probe.step) for probe in since) or 'none'}"
            at, told = _at(pointer, f"probe/{name}"), f"{found_text(expected)}, {source}"
            yield CONTEXT.fault(file=file, pointer=at, found=found_text(found), expected=told)


def _mean_of(probe: AgreementProbe) -> float:
    return probe.mean


def _largest_of(probe: AgreementProbe) -> float:
    return probe.largest


PROBED = {"mean": _mean_of, "max": _largest_of}


def _sft_tokens(file: str, plan: Plan, marker: CompletionMarker) -> Iterator[Fault]:
    """The tokens of an SFT run grow with each row by no more than its records can have, and hold the loss's."""
    geometry, before, told = Geometry.of(plan), 0, 0
    for number, row in enumerate(marker.log_history):
        rows = geometry.rows_per_cycle * (row["step"] - before)
        found, before, pointer = whole_number(row.get(TOKENS)), row["step"], f"/log_history/{number}/{TOKENS}"
        least, most = told + rows, told + rows * plan.generation.context_tokens
        if found is None or not least <= found <= most:
            expected = f"{least:,} to {most:,}: {told:,} tokens before, and those of {rows:,} records"
            yield CONTEXT.fault(file=file, pointer=pointer, found=found_text(row.get(TOKENS)), expected=expected)
            return
        told = found
    if told < (loss := marker.counts.sft_loss_tokens or 0):
        expected = f"at least {loss:,}, the tokens in the loss"
        pointer = f"/log_history/{len(marker.log_history) - 1}/{TOKENS}"
        yield CONTEXT.fault(file=file, pointer=pointer, found=f"{told:,}", expected=expected)


def _at(pointer: str, name: str) -> str:
    return f"{pointer}/{name.replace('/', '~1')}"
