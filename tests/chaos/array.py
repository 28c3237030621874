"""A covering array: few strikes, in which every two choices meet.

All combinations of arm, number of ranks, point and way would take hours. Most defects need two conditions to meet, so
it is enough that every pair of choices occurs in some strike. Strikes on one run are chained, which also shows that a
run survives being killed several times.
"""

from __future__ import annotations

from itertools import combinations, product

from chaos.strikes import POINTS, WAYS, Strike, is_possible

__all__ = ["chains", "pairs"]

Row = tuple[str, int, str, str]


def pairs(arms: tuple[str, ...], ranks: tuple[int, ...]) -> set[tuple[tuple[int, object], tuple[int, object]]]:
    """Return all pairs of choices that are possible, each choice with its position in a row."""
    return {pair for row in _rows(arms, ranks) for pair in _pairs_of(row)}


def chains(arms: tuple[str, ...], ranks: tuple[int, ...]) -> dict[tuple[str, int], list[Strike]]:
    """Return strikes for each arm and number of ranks, in the order in which a run meets them.

    Greedy: the row that covers most of what is missing is taken next; of equals, the one whose chain is shortest.
    """
    rows, missing = _rows(arms, ranks), pairs(arms, ranks)
    chosen: dict[tuple[str, int], list[Row]] = {key: [] for key in product(arms, ranks)}
    while missing:
        best = max(rows, key=lambda row: (len(missing & _pairs_of(row)), -len(chosen[row[0], row[1]])))
        chosen[best[0], best[1]].append(best)
        missing -= _pairs_of(best)
    return {key: _ordered(chain, seed=number) for number, (key, chain) in enumerate(chosen.items())}


def _rows(arms: tuple[str, ...], ranks: tuple[int, ...]) -> list[Row]:
    return [row for row in product(arms, ranks, POINTS, WAYS) if is_possible(row[2], row[3])]


def _pairs_of(row: Row) -> set[tuple[tuple[int, object], tuple[int, object]]]:
    return set(combinations(enumerate(row), 2))


def _ordered(chain: list[Row], *, seed: int) -> list[Strike]:
    ordered = sorted(chain, key=lambda row: POINTS.index(row[2]))  # type: ignore[arg-type]
    return [
        Strike(point=point, way=way, delay=0.1 if point == "mid-step" else 0.0, seed=10 * seed + number)  # type: ignore[arg-type]
        for number, (_, _, point, way) in enumerate(ordered)
    ]
