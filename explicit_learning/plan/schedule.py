"""Which completion is sampled when: the sequence of (slot, visit, generation) that all RL arms share.

TRL's sampler shuffles with a seed, does not count visits, and repeats its first epoch's order when a run resumes in a
later one. Here the whole run is one pass over a fixed sequence: position p of an endless stream of slots is the p-th
use of any slot, visit by visit, each visit in its own keyed order. Step, rank and row follow from the plan's geometry
alone. Nothing depends on the arm, and a resumed run just starts at another position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from explicit_learning.data.slots import training_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.plan.geometry import Geometry

__all__ = ["REUSED", "Rollout", "Schedule"]

# Row index of a loader batch whose content is not read: its completions were sampled earlier in the cycle.
REUSED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One completion to be sampled."""

    slot_id: str
    visit: int
    generation: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The run's sequence of completions.

    Attributes:
        slot_ids: Every slot's id, each once; their order means nothing.
        data_seed: The plan's data seed.
        geometry: The plan's geometry.
        steps: Optimizer steps of the run.
    """

    slot_ids: tuple[str, ...]
    data_seed: int
    geometry: Geometry
    steps: int
    _order: object = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Keep the orders of the newest two visits: a cycle may lie in both."""
        order = lru_cache(maxsize=2)(lambda visit: training_order(self.slot_ids, data_seed=self.data_seed, visit=visit))
        object.__setattr__(self, "_order", order)

    def rollout(self, index: int) -> Rollout:
        """Return the completion at an index of the run; a cycle has those of rank 0 first, then those of rank 1."""
        position, generation = divmod(index, self.geometry.generations)
        visit, place = divmod(position, len(self.slot_ids))
        order: tuple[str, ...] = self._order(visit)  # type: ignore[operator] # a cached function held by an instance
        return Rollout(slot_id=order[place], visit=visit, generation=generation)

    def cycle(self, cycle: int, rank: int) -> list[Rollout]:
        """Return what a rank samples in a generation cycle, in order."""
        geometry = self.geometry
        start = cycle * geometry.rows_per_cycle + rank * geometry.rows_per_rank
        return [self.rollout(index) for index in range(start, start + geometry.rows_per_rank)]

    def __len__(self) -> int:
        """Return how many rows data loaders ask for in the whole run, over all ranks and backward passes."""
        geometry = self.geometry
        return self.steps * geometry.accumulation * geometry.rows_per_cycle

    def row_indices(self) -> Iterator[int]:
        """Yield the row indices in the order in which Accelerate deals whole loader batches out to the ranks.

        TRL's loader batch is a rank's share of a generation cycle. TRL asks for one in every backward pass, but reads
        only the cycle's first; the rows of the others are `REUSED`.
        """
        geometry = self.geometry
        for cycle in range(geometry.cycles(self.steps)):
            first = cycle * geometry.rows_per_cycle
            yield from range(first, first + geometry.rows_per_cycle)
            steps = min(geometry.iterations, self.steps - cycle * geometry.iterations)
            reused = (steps * geometry.accumulation - 1) * geometry.rows_per_cycle
            yield from (REUSED for _ in range(reused))
