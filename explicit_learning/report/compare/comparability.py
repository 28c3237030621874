"""Which runs can be compared, and why others cannot.

Two kinds of obstacles are kept apart. A run that says nothing about its arm (unfinished, not verified, without an
evaluation like those of the others) is left out, and the rest is compared. A plan that differs in more than the arm
makes the whole comparison meaningless: then every run's figures are shown, and no difference.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import found_text
from explicit_learning.experiment.comparison import SEED_FIELDS, comparison_faults
from explicit_learning.report.compare.document import EvaluatedBy, LeftOut, Reason
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from explicit_learning.errors import Fault
    from explicit_learning.report.compare.reading import Found, ReadRun

__all__ = [
    "Usable",
    "chosen_evaluation",
    "evaluated_by",
    "evaluation_like",
    "fault_text",
    "left_out",
    "plan_reasons",
    "usable_runs",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """The runs that differences are computed from, and those that are left out."""

    runs: tuple[ReadRun, ...]
    left_out: tuple[LeftOut, ...]


def evaluated_by(found: Found) -> EvaluatedBy:
    """Return what an evaluation depends on, beside the adapter."""
    return EvaluatedBy(**{field.name: getattr(found.record, field.name) for field in fields(EvaluatedBy)})


def chosen_evaluation(runs: Iterable[ReadRun]) -> EvaluatedBy | None:
    """Return what most runs' evaluations have in common; ``None`` if no run has one.

    Among equally frequent ones, those of all of the plan's own rows come first, then those by the exact engine.
    """
    counted: Counter[EvaluatedBy] = Counter()
    of_plans: set[EvaluatedBy] = set()
    for run in runs:
        counted.update({evaluated_by(found) for found in run.evaluations})
        of_plans |= {evaluated_by(found) for found in run.evaluations if found.record.rows_from == "plan"}
    return min(
        counted,
        key=lambda which: (
            -counted[which],
            which not in of_plans,
            which.limit is not None,
            which.engine != "exact",
            repr(which),
        ),
        default=None,
    )


def evaluation_like(run: ReadRun, which: EvaluatedBy | None) -> Found | None:
    """Return the evaluation of a run that depends on certain things; ``None`` if it has none."""
    return next((found for found in run.evaluations if evaluated_by(found) == which), None)


def plan_reasons(runs: Sequence[ReadRun]) -> list[Reason]:
    """Return why the plans of main runs may not be compared: fields that differ and that neither arm nor seed decides.

    The rule is the one by which an experiment refuses its plans (`comparison_faults`): once for the arms of each seed,
    once for the seeds of each arm.
    """
    plans = [(run.seed, (run.arm, Path(run.place), run.plan_document)) for run in runs if run.is_main]
    by_seed, by_arm = defaultdict(list), defaultdict(list)
    for seed, plan in plans:
        by_seed[seed].append(plan)
        by_arm[plan[0]].append(plan)
    faults: list[Fault] = []
    for same_seed in by_seed.values():
        faults += comparison_faults(same_seed)
    for same_arm in by_arm.values():
        faults += comparison_faults(same_arm, but_for=SEED_FIELDS)
    return list(
        dict.fromkeys(
            Reason(kind="plan", place=fault.file, pointer=fault.pointer, found=fault.found, expected=fault.expected)
            for fault in faults
        )
    )


def usable_runs(runs: Sequence[ReadRun], which: EvaluatedBy | None) -> Usable:
    """Return the runs that say something about their arms, and why the others do not.

    Args:
        runs: Runs of the stage that is compared.
        which: What their evaluations must have in common.
    """
    times = Counter((run.arm, run.seed) for run in runs if run.is_main)
    usable, others = [], []
    for run in runs:
        reasons = tuple(_reasons(run, which, times[run.arm, run.seed]))
        if reasons:
            others.append(left_out(run, reasons))
        else:
            usable.append(run)
    return Usable(runs=tuple(usable), left_out=tuple(others))


def left_out(run: ReadRun, reasons: tuple[Reason, ...]) -> LeftOut:
    """Return a run that is left out."""
    return LeftOut(place=run.place, run_id=run.plan.run_id, arm=run.arm, seed=run.seed, reasons=reasons)


def _reasons(run: ReadRun, which: EvaluatedBy | None, times: int) -> Iterator[Reason]:
    def reason(kind: str, found: str, expected: str, *, file: str | None = None, pointer: str | None = None) -> Reason:
        place = run.place if file is None else f"{run.place}/{file}"
        return Reason(kind=kind, place=place, pointer=pointer, found=found, expected=expected)

    if not run.is_main:
        yield reason("smoke", "a smoke run", "a main run", file=layout.PLAN, pointer="/run_mode")
        return
    if times > 1:
        yield reason("twice", f"{times} runs of {run.arm} with seed {run.seed}", "one run for each arm and seed")
    if not run.is_complete:
        steps = f"status {run.status}, step {run.steps} of {run.plan.optimisation.max_steps}"
        yield reason("unfinished", steps, "a completed run", file=layout.RUN_MANIFEST, pointer="/status")
        return
    if faults := run.verification.faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        yield reason("not_verified", f"el verify finds: {fault_text(faults[0])}{more}", "a run that verifies")
    if evaluation_like(run, which) is None:
        yield _evaluation_reason(run, which)


def _evaluation_reason(run: ReadRun, which: EvaluatedBy | None) -> Reason:
    """Return how a run's evaluations differ from those of the others."""
    place = f"{run.place}/{layout.EVALUATIONS}"
    if not run.evaluations or which is None:
        found, expected = "no evaluation of its final adapter", "one, as el evaluate makes it"
        return Reason(kind="no_evaluation", place=place, pointer=None, found=found, expected=expected)
    nearest = min((_differing(evaluated_by(found), which) for found in run.evaluations), key=len)
    return Reason(
        kind="other_evaluation",
        place=place,
        pointer=f"/{nearest[0][0]}",
        found="an evaluation with " + ", ".join(f"{name} {found_text(own)}" for name, own, _ in nearest),
        expected="one with " + ", ".join(f"{name} {found_text(theirs)}" for name, _, theirs in nearest),
    )


def _differing(one: EvaluatedBy, other: EvaluatedBy) -> list[tuple[str, object, object]]:
    names = [field.name for field in fields(EvaluatedBy)]
    return [(name, a, b) for name in names if (a := getattr(one, name)) != (b := getattr(other, name))]


def fault_text(fault: Fault) -> str:
    """Return a fault as one phrase."""
    where = " ".join(part for part in (fault.file, fault.pointer) if part)
    return (
        f"{where}: {fault.found}; expected {fault.expected}" if where else f"{fault.found}; expected {fault.expected}"
    )
