"""What a smoke run computed against an uninterrupted run of its plan: which step and field differ first, if any do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from explicit_learning.accounting.binding import Binding, log_file
from explicit_learning.accounting.trace import read_trace
from explicit_learning.errors import Context, ExitCode, found_text
from explicit_learning.files.canonical import canonical_bytes, sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.jsonl import read_rows
from explicit_learning.files.schema import MISSING
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import to_json
from explicit_learning.gates.resume import changes_of_node
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.rundir.launches import read_launches
from explicit_learning.rundir.output_comparison import ComparedDigests, FirstDifference, OutputComparison, StepOutputs
from explicit_learning.rundir.run_manifest import read_run_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.launches import Change

    Row = dict[str, Any]
    Rows = dict[tuple[int, str], list[Row]]  # by step and file

__all__ = ["compare_outputs", "difference_faults", "difference_text"]

GATE = "smoke"
CONTEXT = Context(gate=GATE, exit_code=ExitCode.INTERNAL)
# The commit of the code that sampled a row: another one is reported where it matters, and decides no number by itself.
NO_OUTPUT = frozenset({"running_commit"})


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
    rows, others = _rows(run, plan), _rows(other, plan)
    tensors = ComparedDigests(resumed=_tensors(run), uninterrupted=_tensors(other))
    first = next(_differences(rows, others), None)
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
        steps=tuple(_step(step, rows, others) for step in range(1, plan.optimisation.max_steps + 1)),
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


def _rows(run: Path, plan: Plan) -> Rows:
    """Return a run's rows of traces and metrics, by step and file."""
    found: Rows = {}
    tree = FolderTree(run)
    for rank in range(plan.hardware.world_size) if plan.samples else ():
        for scored in read_trace(tree, Binding.of(plan, rank)):
            row = {name: value for name, value in to_json(scored).items() if name not in NO_OUTPUT}
            found.setdefault((scored.optimizer_step + 1, log_file("trace", rank)), []).append(row)
    for _, row in read_rows(run / layout.METRICS, gate=GATE):
        found.setdefault((int(row["step"]), layout.METRICS), []).append(row)
    return found


def _order(place: tuple[int, str]) -> tuple[int, bool, str]:
    """Return what places are sorted by: of a step, completions come before the metrics of its update."""
    step, file = place
    return step, file == layout.METRICS, file


def _differences(rows: Rows, others: Rows) -> Iterator[FirstDifference]:
    """Yield all differences in the order in which a run computes."""
    for step, file in sorted(rows.keys() | others.keys(), key=_order):
        ours, theirs = rows.get((step, file), []), others.get((step, file), [])
        for row, other in zip(ours, theirs, strict=False):
            for name in sorted(row.keys() | other.keys()):
                if _bytes(row, name) == _bytes(other, name):
                    continue
                field = name if file == layout.METRICS else f"{name} of completion {_completion(row)}"
                yield FirstDifference(
                    step=step, file=file, field=field, resumed=_text(row, name), uninterrupted=_text(other, name)
                )
        if len(ours) != len(theirs):
            counts = {"resumed": str(len(ours)), "uninterrupted": str(len(theirs))}
            yield FirstDifference(step=step, file=file, field="number of rows", **counts)


def _completion(row: Row) -> str:
    return f"{row['slot_id']}/{row['visit']}/{row['generation']}"


def _bytes(row: Row, name: str) -> bytes | None:
    return canonical_bytes(row[name]) if name in row else None


def _text(row: Row, name: str) -> str:
    return found_text(row[name]) if name in row else MISSING


def _step(step: int, rows: Rows, others: Rows) -> StepOutputs:
    traces = sorted({file for number, file in rows.keys() | others.keys() if number == step} - {layout.METRICS})
    return StepOutputs(
        step=step,
        trace=_digests([[row for file in traces for row in each.get((step, file), ())] for each in (rows, others)]),
        metrics=_digests([each.get((step, layout.METRICS), []) for each in (rows, others)]),
    )


def _digests(pair: list[list[Row]]) -> ComparedDigests:
    resumed, uninterrupted = (sha256_json(value) if value else None for value in pair)
    return ComparedDigests(resumed=resumed, uninterrupted=uninterrupted)


def _tensors(run: Path) -> str:
    return file_tensors_sha256(run / layout.FINAL_ADAPTER / layout.ADAPTER_WEIGHTS)


def _changes(run: Path, other: Path, plan: Plan) -> Iterator[Change]:
    """Yield what decides numbers and differs between the launches that both runs ended in; pointers name the node."""
    source, launch = read_launches(run)[-1].start, read_launches(other)[-1].start
    for number, node in enumerate(launch.nodes):
        for each in changes_of_node(source, node.platform, plan.hardware, node=number):
            yield replace(each, pointer=f"/nodes/{number}{each.pointer}")
