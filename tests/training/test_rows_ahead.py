"""Rows that threads build ahead: which rows, in which order, how many, and what becomes of an error or a stop."""

from __future__ import annotations

import errno
import os
import threading
import time
import traceback
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.launch.outcomes import outcome_of_error
from explicit_learning.training.rows_ahead import Batch, BatchesAhead, RowsAhead
from explicit_learning.training.state.checkpointing import CheckpointingTrainer

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXT = Context(gate="data", fix="restore it", exit_code=ExitCode.IO)
THREADS = [0, 1, 4]


class NotPicklableError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


ERRORS: list[tuple[Exception, str, int]] = [
    (CONTEXT.refusal(file="a.png", found="no such file", expected="an image"), "no such file", 74),
    (OSError(errno.EIO, "Input/output error", "a.png"), "the disk failed: ", 74),
    (OSError(errno.ENOSPC, "No space left on device"), "disk full: ", 74),
    (NotPicklableError(1, 2), "NotPicklableError: 1 and 2", 70),
    (ValueError("a defect"), "ValueError: a defect", 70),
]


class Rows(Dataset[int]):
    """Rows of numbers; some cannot be read, some take until they are let go."""

    def __init__(self, count: int, *, errors: dict[int, Exception] | None = None, held: Sequence[int] = ()) -> None:
        self.count = count
        self.errors = errors or {}
        self.held = held
        self.let_go = threading.Event()
        self.begun: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.begun.append(index)
        if index in self.held:
            self.let_go.wait(30)
        if index in self.errors:
            raise self.errors[index]
        return index


def loader_of(
    rows: Rows, *, threads: int, ahead: int = 2, batch_size: int = 2, ranks: int = 1, rank: int = 0, seconds: float = 30
) -> tuple[DataLoader[Any], RowsAhead]:
    """Return a rank's loader as `CheckpointingTrainer.get_train_dataloader` makes it, and its rows."""
    built = RowsAhead(rows, threads=threads, seconds=seconds)
    batches = BatchSampler(SequentialSampler(built), batch_size, drop_last=True)
    own = BatchesAhead(batches, ranks=ranks, rank=rank, ahead=ahead)
    return DataLoader(built, batch_sampler=own, collate_fn=list), built


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("ahead", [1, 3, 100])
@pytest.mark.parametrize(("count", "batch_size", "ranks"), [(24, 2, 1), (24, 2, 3), (25, 4, 2), (7, 3, 4), (24, 1, 24)])
def test_each_rank_gets_the_batches_that_accelerate_gives_it(
    count: int, batch_size: int, ranks: int, ahead: int, threads: int
) -> None:
    for rank in range(ranks):
        plain: DataLoader[int] = DataLoader(Rows(count), batch_size=batch_size, drop_last=True, collate_fn=list)
        expected = list(
            prepare_data_loader(plain, num_processes=ranks, process_index=rank, put_on_device=False)  # type: ignore[no-untyped-call] # accelerate names no types here
        )
        loader, rows = loader_of(
            Rows(count), threads=threads, ahead=ahead, batch_size=batch_size, ranks=ranks, rank=rank
        )
        with closing(rows):
            assert len(loader) == len(expected)
            assert list(loader) == expected


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("skipped", [1, 3, 5])
def test_a_resumed_run_goes_on_at_its_batch_and_builds_no_row_before_it(skipped: int, threads: int) -> None:
    rows = Rows(12)
    loader, built = loader_of(rows, threads=threads)
    with closing(built):
        resumed = list(skip_first_batches(loader, skipped))  # type: ignore[no-untyped-call] # accelerate names no types here
    assert resumed == [[2 * batch, 2 * batch + 1] for batch in range(skipped, 6)]
    assert sorted(rows.begun) == list(range(2 * skipped, 12))


def test_as_many_batches_as_planned_are_built_ahead_and_each_row_once() -> None:
    rows = Rows(20)
    loader, built = loader_of(rows, threads=4, ahead=2)
    with closing(built):
        for number, batch in enumerate(loader):
            assert batch == [2 * number, 2 * number + 1]
            known = min(20, 2 * (number + 3))
            end = time.monotonic() + 10
            while len(rows.begun) < known and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(0.005)
            assert sorted(rows.begun) == list(range(known))


def test_a_slow_row_delays_its_batch_and_not_the_building_of_the_next() -> None:
    rows = Rows(8, held=[0])
    loader, built = loader_of(rows, threads=2, ahead=2)
    with closing(built):
        threading.Timer(0.2, rows.let_go.set).start()
        first = next(iter(loader))
        assert first == [0, 1]
        assert sorted(rows.begun) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("error", "text", "code"), ERRORS)
def test_an_error_of_a_row_is_raised_as_it_was_when_its_batch_is_asked_for(
    error: Exception, text: str, code: int, threads: int
) -> None:
    loader, built = loader_of(Rows(8, errors={5: error, 6: KeyError("later")}), threads=threads, ahead=8)
    batches = iter(loader)
    with closing(built):
        assert [next(batches), next(batches)] == [[0, 1], [2, 3]]
        with pytest.raises(type(error)) as raised:
            next(batches)
    assert raised.value is error
    assert traceback.extract_tb(error.__traceback__)[-1].name == "__getitem__"
    outcome = outcome_of_error(error)
    assert text in str(outcome.message)
    assert outcome.code == code


def test_of_two_rows_that_fail_the_first_in_order_is_named() -> None:
    rows = Rows(4, errors={1: ValueError("first"), 2: ValueError("second")}, held=[1])
    threading.Timer(0.1, rows.let_go.set).start()
    loader, built = loader_of(rows, threads=4, batch_size=4)
    with closing(built), pytest.raises(ValueError, match="first"):
        next(iter(loader))


def test_a_disk_that_does_not_answer_ends_the_run_after_its_time() -> None:
    rows = Rows(8, held=[1])
    loader, built = loader_of(rows, threads=2, seconds=0.1)
    with closing(built), pytest.raises(Refusal) as raised:
        next(iter(loader))
    rows.let_go.set()
    (fault,) = raised.value.faults
    assert (fault.gate, fault.exit_code) == ("data", ExitCode.IO)
    assert fault.found == "1 of a batch's 2 rows were not read after 0 s"


def row_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rows")]


def test_nothing_is_built_and_no_thread_is_left_once_it_is_closed() -> None:
    rows = Rows(40, held=[0])
    built = RowsAhead(rows, threads=1)
    batch = Batch([30], number=0)
    batch.following = (Batch(range(30), number=1),)
    assert built.__getitems__(batch) == [30]
    end = time.monotonic() + 10
    while rows.begun != [30, 0]:
        assert time.monotonic() < end
        time.sleep(0.001)
    built.close()
    rows.let_go.set()
    while row_threads():
        assert time.monotonic() < end
        time.sleep(0.001)
    assert rows.begun == [30, 0]
    with pytest.raises(RuntimeError, match="shutdown"):
        built.__getitems__(Batch([31], number=2))


def test_no_process_is_started_that_a_stop_signal_could_end() -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    loader, built = loader_of(Rows(40), threads=4)
    with closing(built):
        for _ in loader:
            assert children.read_text() == before


class Library:
    """The part of the library's trainer that trains."""

    end: Exception | None
    inside: list[Any]

    def train(self, *, resume_from_checkpoint: str) -> str:
        self.inside = list(warnings.filters)
        if self.end is not None:
            raise self.end
        return resume_from_checkpoint


class Trained(CheckpointingTrainer, Library):
    """A trainer without a model."""


@pytest.mark.parametrize("end", [None, OSError(errno.EIO, "Input/output error")])
def test_training_that_returns_or_fails_leaves_nothing_running(end: Exception | None) -> None:
    trainer: Any = object.__new__(Trained)
    trainer.end = end
    trainer._rows_ahead = built = RowsAhead(Rows(4), threads=2)
    before = list(warnings.filters)
    if end is None:
        assert trainer.train(resume_from_checkpoint="checkpoint-2") == "checkpoint-2"
    else:
        with pytest.raises(OSError, match="Input/output error"):
            trainer.train(resume_from_checkpoint="checkpoint-2")
    assert list(warnings.filters) == before != trainer.inside
    with pytest.raises(RuntimeError, match="shutdown"):
        built.__getitems__(Batch([1], number=0))
