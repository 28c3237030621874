"""A covering array: few strikes, in which every two choices meet.

All combinations of arm, number of ranks, number of row threads, point and way would take hours. Most defects
need two conditions to meet, so it is enough that every pair of choices occurs in some strike. Strikes on one run are
chained, which also shows that a run survives being killed several times.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING, TypeVar

from tests.support.chaos.strikes import POINTS, WAYS, Strike, is_possible

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Key", "Pair", "chains", "pairs", "part_of"]

# Arm, ranks, workers: what the strikes of a chain have in common.
Key = tuple[str, int, int]
Row = tuple[str, int, int, str, str]
Pair = tuple[tuple[int, object], ...]
Each = TypeVar("Each")


def pairs(arms: tuple[str, ...], ranks: tuple[int, ...], workers: tuple[int, ...]) -> frozenset[Pair]:
    """Return all pairs of choices that are possible, each choice with its position in a row."""
    return frozenset(pair for row in _rows(arms, ranks, workers) for pair in _pairs_of(row))


def chains(arms: tuple[str, ...], ranks: tuple[int, ...], workers: tuple[int, ...]) -> dict[Key, list[Strike]]:
    """Return strikes for arms, ranks and workers, in the order in which a run meets them.

    Greedy: the row that covers most of what is missing is taken next; of equals, the one that lengthens a chain rather
    than starting one, and then the one whose chain is shortest.
    """
    covered_by = {row: _pairs_of(row) for row in _rows(arms, ranks, workers)}
    missing = set(pairs(arms, ranks, workers))
    chosen: dict[Key, list[Row]] = {}

    def gain(row: Row) -> tuple[int, bool, int]:
        return len(missing & covered_by[row]), row[:3] in chosen, -len(chosen.get(row[:3], ()))

    while missing:
        best = max(covered_by, key=gain)
        chosen.setdefault(best[:3], []).append(best)
        missing -= covered_by[best]
    return {key: _ordered(chain, seed=number) for number, (key, chain) in enumerate(sorted(chosen.items()))}


def part_of(everything: Sequence[Each], part: str) -> list[Each]:
    """Return one of several equal parts, named like ``2/3``; all of them together are everything.

    Raises:
        ValueError: If there is no such part.
    """
    number, count = map(int, part.split("/"))
    if not 1 <= number <= count:
        raise ValueError(f"{part} is not a part; the first of three is 1/3")
    return list(everything[number - 1 :: count])


def _rows(arms: tuple[str, ...], ranks: tuple[int, ...], workers: tuple[int, ...]) -> list[Row]:
    return [row for row in product(arms, ranks, workers, POINTS, WAYS) if is_possible(row[3], row[4])]


def _pairs_of(row: Row) -> frozenset[Pair]:
    return frozenset(combinations(enumerate(row), 2))


def _ordered(chain: list[Row], *, seed: int) -> list[Strike]:
    ordered = sorted(chain, key=lambda row: POINTS.index(row[3]))  # type: ignore[arg-type] # rows hold factors of several types
    return [
        Strike(point=point, way=way, delay=0.1 if point == "mid-step" else 0.0, seed=10 * seed + number)  # type: ignore[arg-type] # same
        for number, (_, _, _, point, way) in enumerate(ordered)
    ]
