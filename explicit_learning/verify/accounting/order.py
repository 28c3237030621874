"""Which completion was sampled when: the order of the traces' rows against the schedule.

The order follows from the slots' ids and the plan's data seed, so it is computed again from them. Where the slots
cannot be reached, the traces name them: then the slots of each visit must be in the order that the seed gives these.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from explicit_learning.data.slots import training_order
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from explicit_learning.accounting.rows import TraceRow
    from explicit_learning.errors import Context, Fault
    from explicit_learning.plan.typed_plan import Plan

    Group = tuple[str, int]  # a slot and its visit

__all__ = ["FIRST_ROW", "RankOrder", "schedule_faults", "seed_faults"]

FIRST_ROW = 2  # the line of a file's first row


class _Repeated:
    """What is wrong with many rows once it is wrong with one: the first is told, and how many there are."""

    def __init__(self, pointer: str) -> None:
        self._pointer = pointer
        self._first: tuple[str, str, str] | None = None
        self._more = 0

    def add(self, *, file: str, found: str, expected: str) -> None:
        if self._first is None:
            self._first = file, found, expected
        else:
            self._more += 1

    def faults(self, context: Context) -> list[Fault]:
        if self._first is None:
            return []
        file, found, expected = self._first
        told = f"{found}, and {self._more:,} more of this kind" if self._more else found
        return [context.fault(file=file, pointer=self._pointer, found=told, expected=expected)]


class RankOrder:
    """Follows the rows of a rank's trace: all generations of one visit after the other, each at its place's step.

    Attributes:
        place: How messages name the trace.
        groups: Slot and visit of each group of rows, in order.
    """

    def __init__(self, plan: Plan, *, place: str) -> None:
        self.place = place
        self.groups: list[Group] = []
        self._geometry = Geometry.of(plan)
        self._moved, self._steps = _Repeated("/generation"), _Repeated("/optimizer_step")

    def follow(self, number: int, row: TraceRow) -> None:
        """Take the next row, which stands on a line of the trace."""
        geometry, index = self._geometry, number - FIRST_ROW
        generation = index % geometry.generations
        if generation == 0:
            self.groups.append((row.slot_id, row.visit))
        expected = (*self.groups[-1], generation)
        step = index // geometry.rows_per_rank * geometry.iterations
        if (row.slot_id, row.visit, row.generation) != expected:
            found = f"completion {row.slot_id}/{row.visit}/{row.generation}"
            told = f"completion {'/'.join(map(str, expected))}: a visit has generations 0 to {geometry.generations - 1}"
            self._moved.add(file=f"{self.place}:{number}", found=found, expected=told)
        elif row.optimizer_step != step:
            found, told = str(row.optimizer_step), f"{step}, as many steps were done before its place in the schedule"
            self._steps.add(file=f"{self.place}:{number}", found=found, expected=told)

    def faults(self, context: Context) -> list[Fault]:
        """Return what was wrong with the rows so far."""
        return self._moved.faults(context) + self._steps.faults(context)


def schedule_faults(
    orders: Sequence[RankOrder], plan: Plan, slot_ids: Collection[str], context: Context
) -> list[Fault]:
    """Return a fault for each rank whose groups of rows are not those that the schedule has for it.

    Args:
        orders: What each rank's trace holds, by rank.
        plan: The plan.
        slot_ids: The ids of all slots, at least one.
        context: What the faults have in common.
    """
    geometry = Geometry.of(plan)
    schedule = Schedule(
        slot_ids=tuple(slot_ids), data_seed=plan.data_seed, geometry=geometry, steps=plan.optimisation.max_steps
    )
    faults: list[Fault] = []
    for rank, order in enumerate(orders):
        wrong = _Repeated("/slot_id")
        planned = geometry.cycles(schedule.steps) * _groups_per_cycle(geometry)
        for index, (found, expected) in enumerate(zip(order.groups, _scheduled(schedule, rank), strict=False)):
            if found != expected:
                told = f"{_name(expected)}: the schedule of data_seed {plan.data_seed} on rank {rank}"
                wrong.add(file=_line(order, index, geometry), found=_name(found), expected=told)
        if len(order.groups) > planned:
            told = f"{planned:,} visits: the plan's steps on rank {rank}"
            wrong.add(file=order.place, found=f"{len(order.groups):,} slot visits", expected=told)
        faults += wrong.faults(context)
    return faults


def _scheduled(schedule: Schedule, rank: int) -> Iterator[Group]:
    for cycle in range(schedule.geometry.cycles(schedule.steps)):
        for rollout in schedule.cycle(cycle, rank)[:: schedule.geometry.generations]:
            yield rollout.slot_id, rollout.visit


def seed_faults(orders: Sequence[RankOrder], plan: Plan, context: Context) -> list[Fault]:
    """Return what is wrong with the order of the slots that the traces name, without knowing the others.

    The visits must follow each other; each must have every slot once (the last: at most once), in the order that the
    data seed gives them. Only the generation cycles that every rank has are looked at.

    Args:
        orders: What each rank's trace holds, by rank.
        plan: The plan.
        context: What the faults have in common.
    """
    geometry = Geometry.of(plan)
    width = _groups_per_cycle(geometry)
    faults: list[Fault] = []
    cycles = min(len(order.groups) // width for order in orders)
    places = [
        (order, at) for cycle in range(cycles) for order in orders for at in range(cycle * width, width * (cycle + 1))
    ]
    whole: set[str] | None = None  # the slots of a complete visit
    for count, (visit, part) in enumerate(groupby(places, key=lambda place: place[0].groups[place[1]][1])):
        group = list(part)
        order, at = group[0]
        ids = [order.groups[at][0] for order, at in group]

        def fault(order: RankOrder, at: int, found: str, expected: str) -> Fault:
            return context.fault(file=_line(order, at, geometry), pointer="/slot_id", found=found, expected=expected)

        if visit != count:
            return [*faults, fault(order, at, _name(order.groups[at]), f"a slot at visit {count}")]
        if whole is not None and (len(ids) > len(whole) or not whole.issuperset(ids)):
            faults.append(fault(order, at, f"other slots at visit {visit}", "the slots of the visits before"))
        elif whole is not None and group[-1] != places[-1] and len(ids) < len(whole):
            faults.append(
                fault(order, at, f"visit {visit} with {len(ids)} of the slots", f"visit {visit} with all {len(whole)}")
            )
        elif len(set(ids)) < len(ids):
            faults.append(fault(order, at, f"a slot twice at visit {visit}", "each slot once"))
        else:
            right = training_order(ids, data_seed=plan.data_seed, visit=visit)
            wrong = next((index for index in range(len(ids)) if ids[index] != right[index]), None)
            if wrong is not None:
                told = f"{_name((right[wrong], visit))}: the order of data_seed {plan.data_seed}"
                faults.append(fault(*group[wrong], _name((ids[wrong], visit)), told))
        whole = set(ids) if whole is None else whole
    return faults


def _groups_per_cycle(geometry: Geometry) -> int:
    """Return how many groups one rank samples in one generation cycle."""
    return geometry.rows_per_rank // geometry.generations


def _line(order: RankOrder, group: int, geometry: Geometry) -> str:
    return f"{order.place}:{group * geometry.generations + FIRST_ROW}"


def _name(group: Group) -> str:
    slot_id, visit = group
    return f"slot {slot_id} at visit {visit}"
