"""Holm's step-down procedure for several tests at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["holm_adjusted"]


def holm_adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values adjusted for their number: rejecting those below α keeps the family-wise error at α.

    The i-th smallest of m p-values is multiplied by m - i + 1, is at least the one before it, and at most 1. Source:
    S. Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of Statistics 6, 1979, 65-70.

    Args:
        p_values: One for each test, between 0 and 1; ``None`` for a test that could not be made. It counts among the m
            tests as one with a p-value of 1, so that the others are adjusted as strictly as if it had been made.

    Returns:
        The adjusted values in the same order; ``None`` where there was none.
    """
    order = sorted((value, index) for index, value in enumerate(p_values) if value is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    reached = 0.0
    for rank, (value, index) in enumerate(order):
        reached = max(reached, min(1.0, (len(p_values) - rank) * value))
        adjusted[index] = reached
    return adjusted
