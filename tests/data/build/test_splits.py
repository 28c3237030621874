"""Components are dealt out by shares, by a seed, and by what is in them."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.data.build.options import PARTS, Shares
from explicit_learning.data.build.splits import deal, part_asked

THIRDS = Shares(evaluation=Fraction(1, 3), sft=Fraction(1, 3))


def dealt(sizes: list[int], shares: Shares, seed: int = 0) -> dict[str, int]:
    names = [f"picture-{index}" for index in range(len(sizes))]
    parts = deal(names, np.array(sizes), parts=PARTS, shares=shares.of(PARTS), seed=seed)
    counts: Counter[str] = Counter()
    for part, size in zip(parts, sizes, strict=True):
        counts[part] += size
    return dict(counts)


def test_shares_are_met_where_components_are_single_items() -> None:
    assert dealt([1] * 1000, Shares()) == {"evaluation": 200, "sft": 300, "slots": 500}
    assert dealt([1] * 24, Shares()) == {"evaluation": 5, "sft": 7, "slots": 12}
    assert dealt([1] * 7, THIRDS) in (
        {"evaluation": 3, "sft": 2, "slots": 2},
        {"evaluation": 2, "sft": 3, "slots": 2},
        {"evaluation": 2, "sft": 2, "slots": 3},
    )


def test_large_components_go_where_most_is_lacking() -> None:
    assert dealt([40, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], Shares()) == {"slots": 40, "sft": 7, "evaluation": 3}
    assert dealt([50, 30, 20], Shares()) == {"slots": 50, "sft": 30, "evaluation": 20}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 2**32 - 1))
def test_no_part_is_further_from_its_share_than_the_largest_component(sizes: list[int], seed: int) -> None:
    counts = dealt(sizes, THIRDS, seed)
    assert sum(counts.values()) == sum(sizes)
    assert all(abs(counts.get(part, 0) - sum(sizes) / 3) <= max(sizes) for part in PARTS)


def test_the_deal_depends_on_names_and_seed_and_not_on_order() -> None:
    names = [f"picture-{index}" for index in range(50)]
    sizes = np.array([1 + index % 3 for index in range(50)])
    parts = dict(zip(names, deal(names, sizes, parts=PARTS, shares=THIRDS.of(PARTS), seed=1), strict=True))
    order = np.random.default_rng(0).permutation(50)
    mixed = [names[index] for index in order]
    again = deal(mixed, sizes[order], parts=PARTS, shares=THIRDS.of(PARTS), seed=1)
    assert dict(zip(mixed, again, strict=True)) == parts
    assert deal(names, sizes, parts=PARTS, shares=THIRDS.of(PARTS), seed=2) != list(parts.values())


@pytest.mark.parametrize(("evaluation", "sft"), [("-1/10", "1/2"), ("3/4", "1/2"), ("0", "11/10")])
def test_shares_that_are_none_are_refused(evaluation: str, sft: str) -> None:
    with pytest.raises(ValueError, match="together at most 1"):
        Shares(evaluation=Fraction(evaluation), sft=Fraction(sft))


def test_shares_of_some_parts() -> None:
    assert Shares().of(("sft", "slots")) == [Fraction(3, 8), Fraction(5, 8)]
    assert Shares(evaluation=Fraction(1), sft=Fraction(0)).of(("sft", "slots")) == [Fraction(1, 2)] * 2


@pytest.mark.parametrize(
    ("word", "part"),
    [("test", "evaluation"), (" Validation ", "evaluation"), ("TRAIN", "train"), ("sft", "sft"), ("slots", "slots"),
     ("other", None), ("", None), (None, None)],
)  # fmt: skip
def test_words_for_splits(word: str | None, part: str | None) -> None:
    assert part_asked(word) == part
