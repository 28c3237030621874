"""The covering array covers, and stays small."""

from __future__ import annotations

from itertools import combinations

import pytest
from chaos.array import chains, pairs
from chaos.strikes import POINTS, is_possible

CHOICES = [(("a", "b", "c"), (1, 2)), (("a",), (1,)), (("a", "b", "c", "d", "e"), (1, 2))]


@pytest.mark.parametrize(("arms", "ranks"), CHOICES)
def test_every_possible_pair_meets(arms: tuple[str, ...], ranks: tuple[int, ...]) -> None:
    found = set()
    for (arm, count), chain in chains(arms, ranks).items():
        for strike in chain:
            assert is_possible(strike.point, strike.way)
            found |= set(combinations(enumerate((arm, count, strike.point, strike.way)), 2))
        places = [POINTS.index(strike.point) for strike in chain]
        assert places == sorted(places)
    assert found == pairs(arms, ranks)


def test_it_is_small() -> None:
    found = chains(*CHOICES[0])
    assert sum(map(len, found.values())) <= 22  # 20 pairs of point and way are possible
    assert max(map(len, found.values())) <= 5
    assert min(map(len, found.values())) >= 1
