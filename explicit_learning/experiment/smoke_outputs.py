"""What a smoke run computed against an uninterrupted run of its plan: which step and field differ first, if any do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import log_file
from explicit_learning.completion.launches import shortened
from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.schema import MISSING
from explicit_learning.files.tree import FolderTree
from explicit_learning.gates.resume import changes_of_node
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.rundir.launches import read_launches
from explicit_learning.rundir.output_comparison import ComparedDigests, FirstDifference, OutputComparison, StepOutputs
from explicit_learning.rundir.run_manifest import read_run_manifest
from explicit_learning.verify.diff.rows import (
    by_step,
    compare_rows,
    first_parting,
    in_order,
    metrics_rows,
    trace_rows,
)
from explicit_learning.verify.diff.step_digests import sampling_ranks, step_digests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.launches import Change

__all__ = ["compare_outputs", "difference_faults", "difference_text"]

GATE = "smoke"
CONTEXT = Context(gate=GATE, exit_code=ExitCode.INTERNAL)


def compare_outputs(run: Path, plan: Plan) -> OutputComparison:
    """Compare a complete smoke run with the uninterrupted run beside its other files.

    Args:
        run: The smoke run's folder.
        plan: Its plan.

    Raises:
        Refusal: If a file of either run is missing, unreadable or damaged.
        OSError: If one cannot be read.
    """
    other = run / layout.UNINTERRUPTED
    tensors = ComparedDigests(resumed=_tensors(run), uninterrupted=_tensors(other))
    first = _first_difference(run, other, plan)
    if first is None and tensors.resumed != tensors.uninterrupted:
        first = FirstDifference(
            step=plan.optimisation.max_steps,
            file=f"{layout.FINAL_ADAPTER}/{layout.ADAPTER_WEIGHTS}",
            field="digest of its tensors",
            resumed=tensors.resumed or "",
            uninterrupted=tensors.uninterrupted or "",
        )
    return OutputComparison(
        run_id=plan.run_id,
        frozen_config_sha256=plan.frozen_config_sha256,
        run_manifest_sha256=read_run_manifest(run).run_manifest_sha256,
        completion_marker_sha256=sha256_file(run / layout.COMPLETION_MARKER),
        determinism=plan.determinism,
        resumed_at=layout.checkpoint_name(SMOKE_STOP_STEP),
        uninterrupted_launch_id=read_launches(other)[-1].start.launch_id,
        accepted_changes=tuple(_changes(run, other, plan)),
        equal=first is None,
        first_difference=first,
        steps=tuple(_steps(run, other, plan)),
        final_adapter_tensors=tensors,
    )


def difference_text(first: FirstDifference) -> str:
    """Return where outputs begin to differ, as a sentence's part."""
    return f"step {first.step}: {first.field} in {first.file} is {first.resumed}"


def difference_faults(run: Path, comparison: OutputComparison) -> list[Fault]:
    """Return the fault of a smoke run under ``strict`` whose outputs differ; none where they may, or are equal."""
    first = comparison.first_difference
    if first is None or comparison.determinism != "strict":
        return []
    why = "an interruption changes what this plan trains"
    if first.step <= SMOKE_STOP_STEP:
        why = "this machine does not repeat what it computes, even without an interruption"
    return [
        CONTEXT.fault(
            file=run / layout.OUTPUT_COMPARISON,
            pointer="/first_difference",
            found=difference_text(first),
            expected=f"{first.uninterrupted}, as in the uninterrupted run {run / layout.UNINTERRUPTED}",
            fix=f"do not use the plan as it is: {why}. Report it as a defect with both runs (CONTRIBUTING.md says "
            'where), or freeze the plan with determinism "seeded", which promises less',
        )
    ]


def _first_difference(run: Path, other: Path, plan: Plan) -> FirstDifference | None:
    """Return where completions, scores or metrics part first; ``None`` if they are equal."""
    ours, theirs = FolderTree(run), FolderTree(other)
    compared = [
        compare_rows(
            log_file("trace", rank),
            in_order(trace_rows(ours, plan, rank), trace_rows(theirs, plan, rank)),
            whole=True,
            same_fields=True,
        )
        for rank in sampling_ranks(plan)
    ]
    metrics = by_step(metrics_rows(ours), metrics_rows(theirs))
    compared.append(compare_rows(layout.METRICS, metrics, whole=True, same_fields=True))
    first = first_parting(each.parting for each in compared)
    if first is None:
        return None
    different = first.fields[0]
    return FirstDifference(
        step=first.step,
        file=first.file,
        field=different.field if first.completion is None else f"{different.field} of completion {first.completion}",
        resumed=_text(different.a),
        uninterrupted=_text(different.b),
    )


def _text(value: str | None) -> str:
    return MISSING if value is None else shortened(value)


def _steps(run: Path, other: Path, plan: Plan) -> Iterator[StepOutputs]:
    """Yield the digests of every step's outputs."""
    ours, theirs = (step_digests(FolderTree(each), plan) for each in (run, other))
    for step, own in ours.items():
        trace = ComparedDigests(resumed=own.trace, uninterrupted=theirs[step].trace)
        metrics = ComparedDigests(resumed=own.metrics, uninterrupted=theirs[step].metrics)
        yield StepOutputs(step=step, trace=trace, metrics=metrics)


def _tensors(run: Path) -> str:
    return file_tensors_sha256(run / layout.FINAL_ADAPTER / layout.ADAPTER_WEIGHTS)


def _changes(run: Path, other: Path, plan: Plan) -> Iterator[Change]:
    """Yield what decides numbers and differs between the launches that both runs ended in; pointers name the node."""
    source, launch = read_launches(run)[-1].start, read_launches(other)[-1].start
    for number, node in enumerate(launch.nodes):
        for each in changes_of_node(source, node.platform, plan.hardware, node=number):
            yield replace(each, pointer=f"/nodes/{number}{each.pointer}")
