"""The sequence of completions that all RL arms share."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.data.slots import training_order
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.schedule import REUSED, Rollout, Schedule

SLOTS = tuple(f"slot-{number}" for number in range(7))


def schedule(*, slots: tuple[str, ...] = SLOTS, steps: int = 6, data_seed: int = 1, **geometry: int) -> Schedule:
    shape = {
        "batch": 4,
        "accumulation": 2,
        "ranks": 2,
        "generations": 4,
        "iterations": 1,
        "completion_tokens": 12,
    } | geometry
    return Schedule(slot_ids=slots, data_seed=data_seed, geometry=Geometry(**shape), steps=steps)


def test_whole_run_is_one_pass_over_visits_in_their_own_orders() -> None:
    # 4 slots a cycle, 6 cycles: 24 uses of 7 slots.
    run = schedule()
    used = [
        (rollout.slot_id, rollout.visit)
        for cycle in range(6)
        for rank in range(2)
        for rollout in run.cycle(cycle, rank)
        if rollout.generation == 0
    ]
    orders = [training_order(SLOTS, data_seed=1, visit=visit) for visit in range(4)]
    assert used == [(slot, visit) for visit, order in enumerate(orders) for slot in order][:24]
    assert orders[0] != orders[1]


def test_every_use_has_each_generation_once_and_stays_on_a_rank() -> None:
    run = schedule(steps=9)
    seen: dict[tuple[str, int], set[int]] = {}
    for cycle in range(9):
        for rank in range(2):
            for rollout in run.cycle(cycle, rank):
                key = (rollout.slot_id, rollout.visit)
                assert rollout.generation not in seen.setdefault(key, set())
                seen[key].add(rollout.generation)
            groups = [(rollout.slot_id, rollout.visit) for rollout in run.cycle(cycle, rank)]
            assert all(groups.count(group) == 4 for group in groups)
    assert all(generations == {0, 1, 2, 3} for generations in seen.values())


@given(order=st.permutations(SLOTS), data_seed=st.integers(0, 2**32 - 1))
def test_file_order_means_nothing(order: list[str], data_seed: int) -> None:
    one, other = schedule(data_seed=data_seed), schedule(slots=tuple(order), data_seed=data_seed)
    assert one.cycle(3, 1) == other.cycle(3, 1)


def test_data_seed_changes_the_order() -> None:
    assert schedule(data_seed=1).cycle(0, 0) != schedule(data_seed=2).cycle(0, 0)


def test_global_order_does_not_depend_on_how_it_is_dealt_out() -> None:
    wide = schedule(ranks=2, batch=4, accumulation=2)
    narrow = schedule(ranks=1, batch=8, accumulation=2)
    for cycle in range(6):
        assert [*wide.cycle(cycle, 0), *wide.cycle(cycle, 1)] == narrow.cycle(cycle, 0)


@pytest.mark.parametrize(("iterations", "steps"), [(1, 3), (2, 4), (3, 6), (2, 3)])
def test_loader_rows_are_each_cycle_once_and_stand_ins_for_its_other_passes(iterations: int, steps: int) -> None:
    run = schedule(iterations=iterations, steps=steps)
    rows = list(run.row_indices())
    assert len(rows) == len(run) == steps * 2 * 16
    batches = [rows[start : start + 16] for start in range(0, len(rows), 16)]
    fresh = [batch for batch in batches if REUSED not in batch]
    # Rows of a pass are all fresh or all stand-ins, and the fresh ones count up without a gap.
    assert all(batch == [REUSED] * 16 for batch in batches if batch not in fresh)
    assert [index for batch in fresh for index in batch] == list(range(16 * -(-steps // iterations)))
    positions = [number for number, batch in enumerate(batches) if batch in fresh]
    assert all(later - earlier == 2 * iterations for earlier, later in pairwise(positions))


def test_rollout_is_the_cycle_s_row() -> None:
    run = schedule()
    flat = [run.rollout(index) for index in range(2 * 16)]
    assert flat == [*run.cycle(0, 0), *run.cycle(0, 1), *run.cycle(1, 0), *run.cycle(1, 1)]
    assert flat[5] == Rollout(slot_id=flat[4].slot_id, visit=0, generation=1)
