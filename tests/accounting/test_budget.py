"""Shares of a ceiling add up, and are even."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.accounting.budget import rank_share


def test_the_remainder_goes_to_the_first_ranks() -> None:
    assert [rank_share(11, rank=rank, world_size=4) for rank in range(4)] == [3, 3, 3, 2]


@given(ceiling=st.integers(0, 2**53), world_size=st.integers(1, 64))
def test_shares_add_up_and_differ_by_at_most_one(ceiling: int, world_size: int) -> None:
    shares = [rank_share(ceiling, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert sum(shares) == ceiling
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] <= 1


@pytest.mark.parametrize(("ceiling", "rank", "world_size"), [(-1, 0, 1), (5, 2, 2), (5, -1, 2), (5, 0, 0)])
def test_no_such_share(ceiling: int, rank: int, world_size: int) -> None:
    with pytest.raises(ValueError, match="no share"):
        rank_share(ceiling, rank=rank, world_size=world_size)
