"""Whether a smoke run's comparison of outputs holds: its own digests are computed again from the run's files.

What the uninterrupted run computed is only repeated: its folder is not part of what a statement covers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, Refusal
from explicit_learning.files.typed_json import RESTORE
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.verify.contradictions import contradiction
from explicit_learning.verify.diff.step_digests import step_digests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker
    from explicit_learning.rundir.output_comparison import OutputComparison, StepOutputs
    from explicit_learning.verify.record import RunRecord

__all__ = ["UNINTERRUPTED_RUN", "comparison_faults"]

UNINTERRUPTED_RUN = "what the uninterrupted run of a smoke run computed: its comparison repeats it"

CONTEXT = Context(gate="interruptions", fix=RESTORE)

_equal = partial(contradiction, CONTEXT)


def comparison_faults(tree: Tree, record: RunRecord, hashes: Mapping[str, str]) -> Iterator[Fault]:
    """Yield everything that is wrong with a smoke run's comparison of outputs, or that it is missing.

    Args:
        tree: The run's files.
        record: What was read of its documents.
        hashes: SHA-256 of each file, by name.
    """
    comparison, plan, file = record.comparison, record.plan, tree.place(layout.OUTPUT_COMPARISON)
    if comparison is None:
        if plan is not None and plan.run_mode == "smoke" and record.marker is not None and not record.unreadable:
            fix = "run `el smoke` again with the same folder: it goes on with its third phase"
            expected = "the comparison with an uninterrupted run"
            yield CONTEXT.fault(file=file, found="no such file", expected=expected, fix=fix)
        return
    sha256, source = hashes.get(layout.COMPLETION_MARKER), f"the hash of {layout.COMPLETION_MARKER}"
    yield from _equal(file, "/completion_marker_sha256", comparison.completion_marker_sha256, sha256, source)
    yield from _launch(tree, file, comparison, record)
    if plan is not None:
        yield from _own(file, comparison, plan, record)
        yield from _steps(tree, file, comparison, plan)
        yield from _first(file, comparison, plan)
    if record.marker is not None:
        yield from _adapter(file, comparison, record.marker)


def _own(file: str, comparison: OutputComparison, plan: Plan, record: RunRecord) -> Iterator[Fault]:
    """The comparison is this run's."""
    named = {
        "run_id": plan.run_id,
        "frozen_config_sha256": plan.frozen_config_sha256,
        "determinism": plan.determinism,
        "resumed_at": layout.checkpoint_name(SMOKE_STOP_STEP),
    }
    if record.manifest is not None:
        named["run_manifest_sha256"] = record.manifest.run_manifest_sha256
    for field, expected in named.items():
        yield from _equal(file, f"/{field}", getattr(comparison, field), expected, "as of this run")


def _launch(tree: Tree, file: str, comparison: OutputComparison, record: RunRecord) -> Iterator[Fault]:
    """The uninterrupted launch is none of the run's own, and lies in its folder while that is there."""
    name = comparison.uninterrupted_launch_id
    found = f"launch {name}"
    if name in {launch.start.launch_id for launch in record.launches}:
        expected = f"a launch of {layout.UNINTERRUPTED}/: this one is the run's own"
        yield CONTEXT.fault(file=file, pointer="/uninterrupted_launch_id", found=found, expected=expected)
    folder = f"{layout.UNINTERRUPTED}/{layout.LAUNCHES}/"
    there = any(other.startswith(folder) for other in tree.files)
    if there and f"{layout.UNINTERRUPTED}/{layout.launch_start_file(name)}" not in tree.files:
        yield CONTEXT.fault(file=file, pointer="/uninterrupted_launch_id", found=found, expected=f"one of {folder}")


def _steps(tree: Tree, file: str, comparison: OutputComparison, plan: Plan) -> Iterator[Fault]:
    """The resumed run's digests are those of its traces and metrics, of each planned step."""
    planned = list(range(1, plan.optimisation.max_steps + 1))
    steps = [step.step for step in comparison.steps]
    yield from _equal(file, "/steps", steps, planned, "the steps that are planned")
    try:
        digests = step_digests(tree, plan)
    except Refusal:
        return  # the recount of the traces, and the reading of the record, have said so
    for number, step in enumerate(comparison.steps):
        if (own := digests.get(step.step)) is not None:
            pointer, source = f"/steps/{number}", f"the digest of step {step.step}"
            for name, where in (("trace", "the traces"), ("metrics", layout.METRICS)):
                found, expected = getattr(step, name).resumed, getattr(own, name)
                yield from _equal(file, f"{pointer}/{name}/resumed", found, expected, f"{source} in {where}")


def _first(file: str, comparison: OutputComparison, plan: Plan) -> Iterator[Fault]:
    """Whether outputs are equal, and the first step at which they are not, follows from the digests."""
    adapters, last = comparison.final_adapter_tensors, plan.optimisation.max_steps
    parted = [step.step for step in comparison.steps if not _same(step)]
    if adapters.resumed != adapters.uninterrupted:
        parted.append(last)
    first, source = min(parted, default=None), "as its own digests say"
    told = None if comparison.first_difference is None else comparison.first_difference.step
    yield from _equal(file, "/equal", comparison.equal, first is None, source)
    yield from _equal(file, "/first_difference/step", told, first, source)
    for number, change in enumerate(comparison.accepted_changes):
        if change.before == change.now:
            pointer, found = f"/accepted_changes/{number}", f"{change.now}, before and now"
            yield CONTEXT.fault(file=file, pointer=pointer, found=found, expected="a change")
    if plan.determinism == "strict" and not comparison.equal:
        expected = "equal outputs: the plan's determinism is strict"
        yield CONTEXT.fault(file=file, pointer="/equal", found="outputs that differ", expected=expected)


def _same(step: StepOutputs) -> bool:
    return all(digests.resumed == digests.uninterrupted for digests in (step.trace, step.metrics))


def _adapter(file: str, comparison: OutputComparison, marker: CompletionMarker) -> Iterator[Fault]:
    found, expected = comparison.final_adapter_tensors.resumed, marker.identities.final_adapter_tensors_sha256
    source = f"as in {layout.COMPLETION_MARKER}"
    yield from _equal(file, "/final_adapter_tensors/resumed", found, expected, source)
