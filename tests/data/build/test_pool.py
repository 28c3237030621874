"""Workers: results in order, little taken ahead, and one room for pictures."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.build import pool
from explicit_learning.data.build.pool import ROOM, ROOM_UNIT, room_for, workers

if TYPE_CHECKING:
    from collections.abc import Iterator


def slow_square(number: int) -> int:
    time.sleep(0.02 * (number % 3))
    return number * number


def fail_at_five(number: int) -> int:
    if number == 5:
        raise ValueError("five")
    return number


def held_at_once(task: tuple[int, str]) -> int:
    """Hold room for a picture, and return the greatest area held by all workers meanwhile, as files say."""
    area, folder = task
    with room_for(area):
        mine = os.path.join(folder, f"{os.getpid()}-{area}")  # noqa: PTH118 - a worker imports little
        with open(mine, "w", encoding="utf-8"):  # noqa: PTH123 - as above
            time.sleep(0.05)
            held = sum(int(name.split("-")[1]) for name in os.listdir(folder))  # noqa: PTH208 - as above
        os.unlink(mine)  # noqa: PTH108 - as above
    return held


@pytest.mark.slow
def test_results_come_in_order_and_few_tasks_are_taken_ahead() -> None:
    taken = 0

    def numbers() -> Iterator[int]:
        nonlocal taken
        for number in range(40):
            taken += 1
            yield number

    ahead = []
    found = []
    with workers(2) as apply:
        for square in apply(slow_square, numbers()):
            ahead.append(taken - len(found))
            found.append(square)
    assert found == [number * number for number in range(40)]
    assert max(ahead) <= 4


@pytest.mark.slow
def test_what_a_worker_raises_reaches_the_parent() -> None:
    with workers(2) as apply, pytest.raises(ValueError, match="five"):
        list(apply(fail_at_five, range(20)))


@pytest.mark.slow
def test_all_workers_together_hold_no_more_than_the_room(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("held"))
    most = ROOM * ROOM_UNIT
    areas = [most // 2, most // 3, most // 2, most // 4, most, most // 3, most // 2, most // 5] * 3
    with workers(4) as apply:
        held = list(apply(held_at_once, [(area, folder) for area in areas]))
    assert max(held) <= most
    assert all(total >= area for total, area in zip(held, areas, strict=True))


def test_a_picture_above_the_room_takes_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("spawn")
    room = context.Semaphore(ROOM)
    monkeypatch.setattr(pool, "_room", (context.Lock(), room))
    with room_for(10 * ROOM * ROOM_UNIT):
        assert not room.acquire(block=False)
    for _ in range(ROOM):
        assert room.acquire(block=False)


def test_without_workers_nothing_waits() -> None:
    with room_for(10 * ROOM * ROOM_UNIT), room_for(1):
        pass
