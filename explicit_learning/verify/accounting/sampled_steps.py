"""What ranks sampled up to any step, counted from the rows of their traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explicit_learning.accounting.rows import TraceRow

__all__ = ["SampledSteps", "StepCounts"]


@dataclass(slots=True, kw_only=True)
class StepCounts:
    """Counts of completions.

    Attributes:
        tokens: Sampled tokens. Unit: tokens.
        terminated_tokens: Those of completions that ended with a terminal token. Unit: tokens.
        longest: The longest completion of each step on each rank, added up. Unit: tokens.
        malformed: Completions that broke the answer contract, truncated ones included.
        truncated: Completions without a terminal token.
        zero_variance_groups: Groups whose terminated completions all have one reward, or that have none.
    """

    tokens: int = 0
    terminated_tokens: int = 0
    longest: int = 0
    malformed: int = 0
    truncated: int = 0
    zero_variance_groups: int = 0

    def add(self, other: StepCounts) -> None:
        """Add the counts of other completions."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class SampledSteps:
    """Counts by step and rank; a group's rows follow each other, as the order of a trace is checked to be."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], StepCounts] = {}
        self._group: tuple[int, str, int] | None = None
        self._rewards: set[float] = set()

    def add(self, rank: int, row: TraceRow) -> None:
        """Count a row of a rank's trace."""
        counts = self._counts.setdefault((row.optimizer_step, rank), StepCounts())
        counts.tokens += row.token_count
        counts.terminated_tokens += row.token_count if row.terminated else 0
        counts.longest = max(counts.longest, row.token_count)
        counts.malformed += not row.valid
        counts.truncated += not row.terminated
        if (group := (rank, row.slot_id, row.visit)) != self._group:
            self._group, self._rewards = group, set()
            counts.zero_variance_groups += 1  # until its rewards differ
        before = len(self._rewards)
        if row.terminated:
            self._rewards.add(row.total)
        if before == 1 and len(self._rewards) > 1:
            counts.zero_variance_groups -= 1

    def before(self, step: int, rank: int | None = None) -> StepCounts:
        """Return the counts of what was sampled before a number of steps was done.

        Args:
            step: Optimizer steps.
            rank: The rank; ``None`` for all ranks.
        """
        total = StepCounts()
        for (done, own), counts in self._counts.items():
            if done < step and rank in {None, own}:
                total.add(counts)
        return total
