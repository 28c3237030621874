"""Which files a checkpoint has: exactly those that training writes under a plan, and its mark.

Sealing, resuming and verification compare with the same set. A resume needs every file of it, and nothing else is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from explicit_learning.plan.typed_plan import Objective, Plan

__all__ = ["checkpoint_files", "has_reference", "unplanned_files"]


def has_reference(objective: Objective | None) -> bool:
    """Whether the policy has a frozen copy beside it, which the KL term of an objective is measured from.

    Args:
        objective: The plan's objective; ``None`` in SFT arms.
    """
    return objective is not None and objective.beta != 0


def checkpoint_files(plan: Plan) -> frozenset[str]:
    """Return every file of a plan's checkpoints but the mark, as POSIX paths relative to the checkpoint's folder."""
    adapter = (layout.ADAPTER_CONFIG, layout.ADAPTER_WEIGHTS)
    files = {*adapter, layout.OPTIMIZER, layout.SCHEDULER, layout.TRAINER_STATE}
    if has_reference(plan.objective):
        files |= {f"{layout.REFERENCE_ADAPTER}/{name}" for name in adapter}
    for rank in range(plan.hardware.world_size):
        files |= {layout.counters_file(rank), layout.state_digests_file(rank), layout.random_streams_file(rank)}
        if plan.samples:
            files.add(layout.frontiers_file(rank))
    return frozenset(files)


def unplanned_files(plan: Plan, names: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield each file in which a checkpoint differs from those of its plan, with whether it is there, sorted.

    Args:
        plan: The plan.
        names: The checkpoint's files but the mark, as POSIX paths relative to its folder.
    """
    present, planned = set(names), checkpoint_files(plan)
    yield from ((name, name in present) for name in sorted(present ^ planned))
