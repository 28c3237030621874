"""The covering array covers, and stays small."""

from __future__ import annotations

from itertools import combinations

import pytest

from explicit_learning.arms import ARMS as TABLE
from tests.chaos.test_chaos import ARMS, RANKS, WORKERS
from tests.support.chaos.array import chains, pairs, part_of
from tests.support.chaos.strikes import POINTS, is_possible
from tests.support.chaos.worlds import ARMS as KNOWN

CHOICES = [
    (ARMS, RANKS, WORKERS),
    (("a", "b", "c"), (1, 2), (0,)),
    (("a",), (1,), (0, 4)),
    (("a", "b", "c", "d", "e", "f", "g"), (1, 2), (0, 1)),
]


@pytest.mark.parametrize(("arms", "ranks", "workers"), CHOICES)
def test_every_possible_pair_meets(arms: tuple[str, ...], ranks: tuple[int, ...], workers: tuple[int, ...]) -> None:
    found = set()
    for key, chain in chains(arms, ranks, workers).items():
        for strike in chain:
            assert is_possible(strike.point, strike.way)
            found |= set(combinations(enumerate((*key, strike.point, strike.way)), 2))
        places = [POINTS.index(strike.point) for strike in chain]
        assert places == sorted(places)
    assert found == pairs(arms, ranks, workers)


def test_it_covers_every_trainer_and_is_as_small_as_it_can_be() -> None:
    assert {TABLE[KNOWN[arm][0]].trainer for arm in ARMS} == {arm.trainer for arm in TABLE.values()}
    found = chains(ARMS, RANKS, WORKERS)
    assert len(found) == len(ARMS) * len(WORKERS)  # a chain has one arm and one number of workers
    assert sum(map(len, found.values())) == len(ARMS) * len(POINTS)  # a strike has one arm and one point
    assert max(map(len, found.values())) <= 3


def test_its_parts_are_equal_and_together_the_whole() -> None:
    keys = list(chains(ARMS, RANKS, WORKERS))
    parts = [part_of(keys, f"{number}/3") for number in (1, 2, 3)]
    assert [len(part) for part in parts] == [5, 5, 5]
    assert sorted(key for part in parts for key in part) == keys
    with pytest.raises(ValueError, match="4/3 is not a part"):
        part_of(keys, "4/3")
