"""What the launches of a run recorded, against each other and against what the marker adds up from them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explicit_learning.completion.launches import accepted_changes
from explicit_learning.completion.marker import measured_ends, sums_of
from explicit_learning.errors import Context
from explicit_learning.rundir import layout
from explicit_learning.rundir.launches import source_of
from explicit_learning.verify.contradictions import contradiction
from explicit_learning.verify.launch_ends import end_record_faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker
    from explicit_learning.rundir.launches import Launch

__all__ = ["launch_faults"]

CONTEXT = Context(gate="launches", fix="restore the run directory from a copy: its records contradict each other")

_different = partial(contradiction, CONTEXT)


def launch_faults(
    tree: Tree, plan: Plan, launches: Sequence[Launch], marker: CompletionMarker | None
) -> Iterator[Fault]:
    """Yield every contradiction between the records of launches, and between them and the marker.

    Args:
        tree: The run's files.
        plan: The plan.
        launches: The run's launches, in order.
        marker: The completion marker; ``None`` for a run that is not complete.
    """
    yield from _steps(tree, plan, launches)
    for number, launch in enumerate(launches):
        start, file = launch.start, tree.place(layout.launch_start_file(launch.start.launch_id))
        changes = accepted_changes(start.nodes, plan.hardware, source_of(launches[:number], start.step))
        source = "what decides numbers and differs from the launch that it continues: no other difference is accepted"
        yield from _different(file, "/accepted_changes", start.accepted_changes, changes, source)
        for rank, node in enumerate(start.nodes):
            known = [gpu["uuid"] for gpu in node.platform.hardware["nvidia"]["gpus"]]
            used = [uuid for uuid in node.platform.gpus if uuid in known]
            pointer = f"/nodes/{rank}/platform/gpus"
            yield from _different(file, pointer, list(node.platform.gpus), used, "GPUs that the machine has")
        yield from _locks(file, launch, plan.environment_lock_sha256)
    yield from end_record_faults(tree, plan, launches)
    if marker is not None and launches:
        yield from _sums(tree, plan, launches, marker)
        yield from _last_end(tree, plan, launches[-1])


def _steps(tree: Tree, plan: Plan, launches: Sequence[Launch]) -> Iterator[Fault]:
    """Each launch begins at the checkpoint that it names, the first at step 0, and none beyond what was reached.

    How far a launch came is known if it ended in order and every rank told its step; else it may have come to the end.
    """
    planned, reached = plan.optimisation.max_steps, 0
    for launch in launches:
        start, file = launch.start, tree.place(layout.launch_start_file(launch.start.launch_id))
        step = layout.step_of(start.checkpoint or "") or 0
        yield from _different(file, "/step", start.step, step, "the step of its checkpoint")
        if start.step > reached:
            expected = f"at most {reached}, the steps that the launches before it had done"
            yield CONTEXT.fault(file=file, pointer="/step", found=str(start.step), expected=expected)
        ends = [rank.optimizer_step for rank in launch.end.ranks] if launch.end else []
        told = [end for end in ends if end is not None]
        reached = max([reached, *told]) if told and len(told) == len(ends) else planned
        if reached > planned:
            where = tree.place(layout.launch_end_file(start.launch_id))
            yield CONTEXT.fault(file=where, found=f"{reached} steps", expected=f"at most {planned} steps, as planned")


def _last_end(tree: Tree, plan: Plan, launch: Launch) -> Iterator[Fault]:
    """Every rank of the launch that completed the run reached the last step; a kill may have kept its end away."""
    if launch.end is None:
        return
    file = tree.place(layout.launch_end_file(launch.start.launch_id))
    for rank in launch.end.ranks:
        pointer = f"/ranks/{rank.rank}"
        yield from _different(file, f"{pointer}/status", rank.status, "completed", "as of a complete run")
        steps = plan.optimisation.max_steps
        yield from _different(file, f"{pointer}/optimizer_step", rank.optimizer_step, steps, "as planned")


def _locks(file: str, launch: Launch, expected: str) -> Iterator[Fault]:
    """Every node ran in the environment of the plan's lock; an image was built from it."""
    for number, node in enumerate(launch.start.nodes):
        place, source = f"/nodes/{number}", f"as in {layout.PLAN}"
        yield from _different(file, f"{place}/lock/sha256", node.lock.sha256, expected, source)
        if (baked := node.image.baked_in) is not None:
            pointer = f"{place}/image/baked_in/lock_sha256"
            yield from _different(file, pointer, baked["lock_sha256"], expected, source)


def _sums(tree: Tree, plan: Plan, launches: Sequence[Launch], marker: CompletionMarker) -> Iterator[Fault]:
    """Memory, time and GPUs that the marker has are those of the launches' ends.

    The marker is written before the last launch ends; a kill in between leaves no record of that end.
    """
    ranks, file, source = plan.hardware.world_size, tree.place(layout.COMPLETION_MARKER), f"as in {layout.LAUNCHES}/"
    earlier, last = measured_ends(launches[:-1], ranks), measured_ends(launches[-1:], ranks)
    yield from _different(file, "/launches/measured", marker.launches.measured, len(earlier) + 1, source)
    if not last:
        return
    sums = sums_of([*earlier, *last])
    yield from _different(file, "/memory", marker.memory, sums.memory, source)
    for name in ("device_seconds", "runtime_seconds"):
        found, expected = getattr(marker.compute, name), getattr(sums, name)
        yield from _different(file, f"/compute/{name}", found, expected, source)
    if (validation := marker.compute.validation) is not None:
        found, expected = validation.device_seconds, sums.validation_seconds
        yield from _different(file, "/compute/validation/device_seconds", found, expected, source)
    yield from _different(file, "/gpus", list(marker.gpus), [rank.gpu for rank in last[0]], source)
