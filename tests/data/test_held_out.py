"""Which groups are held out follows from their ids, a share and a seed, and from nothing else."""

from __future__ import annotations

import hashlib
import json

import pytest

from explicit_learning.data.held_out import held_out_groups, without_groups
from explicit_learning.data.slots import training_order
from tests.support.dataset_builder import Builder

GROUPS = [f"group-{number}" for number in range(20)]


def digest(seed: int, group: str) -> str:
    """Return the key of a group, from the definition in the docs."""
    text = json.dumps(["explicit-learning/held-out-groups/1", seed, group], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("seed", [0, 1, 4294967295])
def test_the_groups_with_the_smallest_keys_are_held_out(seed: int) -> None:
    expected = frozenset(sorted(GROUPS, key=lambda group: digest(seed, group))[:4])
    assert held_out_groups(GROUPS, share=0.2, seed=seed) == expected


def test_order_and_number_of_rows_mean_nothing() -> None:
    found = held_out_groups(GROUPS, share=0.2, seed=0)
    assert held_out_groups([*GROUPS[::-1], *GROUPS[:7]], share=0.2, seed=0) == found


@pytest.mark.parametrize(("share", "count"), [(0.01, 0), (0.05, 1), (0.07, 1), (0.08, 2), (0.3, 6), (0.99, 20)])
def test_a_share_is_rounded_to_whole_groups(share: float, count: int) -> None:
    assert len(held_out_groups(GROUPS, share=share, seed=0)) == count


def test_a_larger_share_holds_out_the_same_groups_and_more() -> None:
    shares = [held_out_groups(GROUPS, share=share, seed=3) for share in (0.1, 0.3, 0.6)]
    assert shares[0] < shares[1] < shares[2]


def test_the_choice_is_another_than_the_order_of_training() -> None:
    first = set(training_order(GROUPS, data_seed=0, visit=0)[:4])
    assert held_out_groups(GROUPS, share=0.2, seed=0) != first


def test_rows_of_other_groups_are_left_in_their_order(tmp_path_factory: pytest.TempPathFactory) -> None:
    from explicit_learning.data.rows import slot_from_json

    rows = [slot_from_json(slot) for slot in Builder(tmp_path_factory.mktemp("data")).slots]
    assert without_groups(rows, {"train-0"}) == ()
    assert without_groups(rows, {"train-1"}) == tuple(rows)
