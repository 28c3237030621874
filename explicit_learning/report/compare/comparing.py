"""From the runs that are named to the whole comparison."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from explicit_learning.arms import ARMS, canonical_arm
from explicit_learning.errors import Context, ExitCode, FaultCollector, Refusal
from explicit_learning.files.progress import progress
from explicit_learning.report.compare.comparability import (
    chosen_evaluation,
    evaluation_like,
    fault_text,
    left_out,
    plan_reasons,
    usable_runs,
)
from explicit_learning.report.compare.contrasts import contrasts_of
from explicit_learning.report.compare.curves import curve_window, mean_curve, run_curve
from explicit_learning.report.compare.document import (
    ArmFigures,
    ArmMeasure,
    Comparison,
    LeftOut,
    Measure,
    Reason,
    Run,
    RunMeasure,
)
from explicit_learning.report.compare.gathering import gather
from explicit_learning.report.compare.measures import measure_order, measure_title, measured, totals, what_counts
from explicit_learning.report.compare.reading import read_run, rewards_of
from explicit_learning.report.compare.remarks import remarks_of
from explicit_learning.report.statistics.crossed import DRAWS
from explicit_learning.report.statistics.paired import LEVEL
from explicit_learning.rundir.evaluation import read_answers
from explicit_learning.rundir.evaluation_summary import wilson_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from explicit_learning.report.compare.document import Curve, EvaluatedBy
    from explicit_learning.report.compare.measures import Measured
    from explicit_learning.report.compare.reading import ReadRun

__all__ = ["DEFAULT_BASELINE", "compare_runs"]

USAGE = Context(gate="usage", exit_code=ExitCode.USAGE)
DEFAULT_BASELINE = "answer_grpo"
LEAST_ARMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A run, and what its chosen evaluation says."""

    run: ReadRun
    evaluation: str | None
    measured: Measured

    def has_rows_of(self, other: _Read) -> bool:
        """Whether both answered the same rows of the same base items."""
        return _rows(self.measured) == _rows(other.measured)


def compare_runs(named: Sequence[Path], *, baseline: str | None = None) -> Comparison:
    """Compare runs.

    Args:
        named: Run directories, archives of runs, and folders of experiments.
        baseline: The arm that the others are compared with; by default `DEFAULT_BASELINE` if it is among them, else the
            first one in the table of arms.

    Raises:
        Refusal: If something that is named is not a run, if no run can be read, or if the baseline has no run.
    """
    gathered = gather(named)
    everything, unreadable = _read_all(gathered.runs)
    asked = None if baseline is None else _known_baseline(baseline, everything)
    stage = _compared_stage(everything)
    which = chosen_evaluation(stage)
    found = {run.place: _measured(run, which) for run in everything}
    usable = usable_runs(stage, which)
    compared, of_other_rows = _same_rows([found[run.place] for run in usable.runs])
    arms = _arms(compared)
    chosen = asked or (DEFAULT_BASELINE if DEFAULT_BASELINE in arms else next(iter(arms), None))
    reasons = [*plan_reasons(stage), *_set_reasons(arms, chosen)]
    names = sorted({name for each in compared for name in each.measured}, key=measure_order)
    contrasts = (
        ()
        if reasons or chosen is None or which is None
        else contrasts_of(arms, baseline=chosen, measures=names, key=which.evaluation_manifest_sha256)
    )
    others = (*gathered.absent, *unreadable, *usable.left_out, *of_other_rows)
    window = curve_window(max((run.plan.optimisation.max_steps for run in stage), default=1))
    compared_places = set() if reasons else {each.run.place for each in compared}
    runs = tuple(_run(found[run.place], compared=run.place in compared_places) for run in everything)
    ordered = [] if reasons or chosen is None else [chosen, *(arm for arm in arms if arm != chosen)]
    return Comparison(
        comparable=not reasons,
        reasons=tuple(reasons),
        left_out=others,
        remarks=tuple(remarks_of(everything, stage, contrasts, others)),
        evaluated_by=which,
        baseline=None if reasons else chosen,
        level=LEVEL,
        draws=DRAWS,
        window=window,
        runs=runs,
        measures=tuple(_measure(name, [*compared, *found.values()]) for name in names),
        arms=tuple(_arm(arm, arms[arm]) for arm in ordered),
        contrasts=contrasts,
        curves=tuple(_curves(stage, {each.run.place for each in compared}, window)),
    )


def _read_all(paths: Sequence[Path]) -> tuple[list[ReadRun], list[LeftOut]]:
    """Return the runs in the order of their arms and seeds, and those that cannot be read.

    Raises:
        Refusal: If none can be read.
    """
    runs, unreadable, faults = [], [], FaultCollector("compare")
    with progress("verifying runs", len(paths), "runs") as advance:
        for path in paths:
            try:
                runs.append(read_run(path))
            except Refusal as refusal:
                faults.extend(refusal.faults)
                unreadable.append(_unreadable(str(path), refusal))
            advance(1)
    if not runs:
        faults.refuse_if_any()
    order = list(ARMS)
    return sorted(runs, key=lambda run: (order.index(run.arm), run.seed, run.place)), unreadable


def _unreadable(place: str, refusal: Refusal) -> LeftOut:
    reasons = tuple(
        Reason(kind="unreadable", place=fault.file, pointer=fault.pointer, found=fault.found, expected=fault.expected)
        for fault in refusal.faults
    )
    return LeftOut(place=place, run_id=None, arm=None, seed=None, reasons=reasons)


def _known_baseline(name: str, runs: Iterable[ReadRun]) -> str:
    """Return the canonical name of an arm that some run is of.

    Raises:
        Refusal: If the arm is unknown, or has no run.
    """
    there = list(dict.fromkeys(run.arm for run in _compared_stage(list(runs))))
    expected, fix = f"one of the arms that are compared: {', '.join(there)}", "choose among these"
    try:
        arm = canonical_arm(name)
    except KeyError:
        arm = None
    if arm not in there:
        raise USAGE.refusal(pointer="--baseline", found=name, expected=expected, fix=fix)
    return arm


def _compared_stage(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """Return the RL runs; if there are none, the SFT runs."""
    return [run for run in runs if not run.is_sft] or list(runs)


def _measured(run: ReadRun, which: EvaluatedBy | None) -> _Read:
    """Return what a run answered; nothing if it has no evaluation of the kind, or its answers cannot be read."""
    evaluation = evaluation_like(run, which)
    if evaluation is None:
        return _Read(run=run, evaluation=None, measured={})
    try:
        answers = read_answers(evaluation.tree)
    except Refusal:  # verification tells of it, and the run is left out
        return _Read(run=run, evaluation=None, measured={})
    return _Read(run=run, evaluation=evaluation.record.name, measured=measured(answers))


def _rows(found: Measured) -> dict[str, dict[str, int]]:
    return {name: {item: count.rows for item, count in items.items()} for name, items in found.items()}


def _same_rows(found: Sequence[_Read]) -> tuple[list[_Read], list[LeftOut]]:
    """Return the runs that answered the rows that the first one did, and the others."""
    same = [each for each in found if each.has_rows_of(found[0])]
    others = [each for each in found if not each.has_rows_of(found[0])]
    first = found[0].run.place if found else None
    return same, [
        left_out(
            each.run,
            (
                Reason(
                    kind="other_rows",
                    place=each.run.place,
                    pointer=None,
                    found="answers to other rows, although the hash of the rows is the same",
                    expected=f"answers to the rows that {first} answered",
                ),
            ),
        )
        for each in others
    ]


def _arms(compared: Iterable[_Read]) -> dict[str, dict[int, Measured]]:
    """Return what was answered by arm and seed, arms in the order of their table."""
    arms: dict[str, dict[int, Measured]] = {}
    for each in compared:
        arms.setdefault(each.run.arm, {})[each.run.seed] = each.measured
    return arms


def _set_reasons(arms: dict[str, dict[int, Measured]], baseline: str | None) -> Iterator[Reason]:
    """Yield why the runs that are left do not make a comparison."""

    def reason(kind: str, found: str, expected: str) -> Reason:
        return Reason(kind=kind, place=None, pointer=None, found=found, expected=expected)

    if len(arms) < LEAST_ARMS:
        found = f"comparable runs of the arm {next(iter(arms))} alone" if arms else "no run that can be compared"
        yield reason("one_arm", found, "comparable runs of two arms or more")
    elif baseline not in arms:
        yield reason("no_baseline", f"no comparable run of the baseline {baseline}", "one or more")
    elif not any(arms[arm].keys() & arms[baseline].keys() for arm in arms if arm != baseline):
        seeds = "; ".join(f"{arm}: {', '.join(map(str, sorted(found)))}" for arm, found in arms.items())
        yield reason("no_common_seed", f"seeds {seeds}", f"a seed that the baseline {baseline} and another arm have")


def _run(found: _Read, *, compared: bool) -> Run:
    run = found.run
    plan, counts, faults = run.plan, run.counts, run.verification.faults
    return Run(
        place=run.place,
        run_id=plan.run_id,
        arm=plan.arm,
        seed=plan.seed,
        stage="sft" if run.is_sft else "rl",
        mode=plan.run_mode,
        status=run.status,
        steps=run.steps,
        planned_steps=plan.optimisation.max_steps,
        sampled_tokens=None if counts is None else counts.sampled_tokens,
        completions=None if counts is None else counts.completions,
        frozen_config_sha256=plan.frozen_config_sha256,
        slot_manifest_sha256=plan.data.slot_manifest_sha256,
        faults=len(faults),
        first_fault=fault_text(faults[0]) if faults else None,
        signer=run.verification.signer,
        evaluation=found.evaluation,
        compared=compared,
        measures=tuple(_run_measure(name, found.measured) for name in found.measured),
    )


def _run_measure(name: str, found: Measured) -> RunMeasure:
    total = totals(found[name])
    low, high = wilson_interval(total.right, total.rows)
    return RunMeasure(
        measure=name, right=total.right, rows=total.rows, rate=total.right / total.rows, interval=(low, high)
    )


def _measure(name: str, found: Iterable[_Read]) -> Measure:
    items = next(each.measured[name] for each in found if name in each.measured)
    return Measure(
        name=name, title=measure_title(name), counts=what_counts(name), items=len(items), rows=totals(items).rows
    )


def _arm(arm: str, runs: dict[int, Measured]) -> ArmFigures:
    names = next(iter(runs.values()))
    return ArmFigures(
        arm=arm, seeds=tuple(sorted(runs)), measures=tuple(_arm_measure(name, runs.values()) for name in names)
    )


def _arm_measure(name: str, runs: Iterable[Measured]) -> ArmMeasure:
    counts = [totals(found[name]) for found in runs]
    rates = [count.right / count.rows for count in counts]
    return ArmMeasure(measure=name, mean=fmean(rates), smallest=min(rates), largest=max(rates))


def _curves(stage: Iterable[ReadRun], compared: set[str], window: int) -> Iterator[Curve]:
    """Yield the curve of each main run that has rewards, and after those of an arm the mean over its compared runs."""
    curves: dict[str, list[tuple[bool, Curve]]] = {}
    for run in stage:
        if not run.is_main:
            continue
        try:
            curve = run_curve(rewards_of(run), arm=run.arm, seed=run.seed, window=window)
        except Refusal:  # verification tells of damaged metrics
            continue
        if curve.points:
            curves.setdefault(run.arm, []).append((run.place in compared, curve))
    for found in curves.values():
        yield from (curve for _, curve in found)
        if of_compared := [curve for is_compared, curve in found if is_compared]:
            yield mean_curve(of_compared)
