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
    if marker is not None and launches:
        yield from _sums(tree, plan, launches, marker)


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
    yield from _different(file, "/gpus", list(marker.gpus), [rank.gpu for rank in last[0]], source)
