"""The spread of whole numbers: smallest, median, largest. Counted, not kept: memory follows from how many differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Spread", "spread_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Smallest, median and largest of some numbers; of an even number of them, the lower of the two in the middle."""

    minimum: int
    median: int
    maximum: int


def spread_of(counts: Mapping[int, int]) -> Spread | None:
    """Return the spread of numbers, given how often each occurs; ``None`` of no number."""
    total = sum(counts.values())
    if not total:
        return None
    reached, values = 0, sorted(counts)
    for value in values:
        reached += counts[value]
        if 2 * reached >= total:
            return Spread(minimum=values[0], median=value, maximum=values[-1])
    raise AssertionError("half of the numbers are below none of them")
