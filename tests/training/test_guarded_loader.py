"""What is raised while a batch is made is raised in the process that asks for the batch, whole."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.launch.outcomes import outcome_of_error
from explicit_learning.training.guarded_loader import GuardedCollator, GuardedRows, batches_or_error

CONTEXT = Context(gate="data", fix="restore it", exit_code=ExitCode.IO)


# A loader that ends with an error gives its worker 5 s to end.
WORKERS = [0, pytest.param(1, marks=pytest.mark.slow)]


class NotPicklableError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


ERRORS: list[tuple[Exception, type[Exception], str, int]] = [
    (CONTEXT.refusal(file="a.png", found="no such file", expected="an image"), Refusal, "no such file", 74),
    (OSError(errno.EIO, "Input/output error", "a.png"), OSError, "the disk failed: ", 74),
    (OSError(errno.ENOSPC, "No space left on device"), OSError, "disk full: ", 74),
    (NotPicklableError(1, 2), RuntimeError, "NotPicklableError: 1 and 2", 70),
    (ValueError("a defect"), ValueError, "ValueError: a defect", 70),
]


class Rows(Dataset[int]):
    """Rows of numbers, of which row 5 cannot be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise self.error
        return index


def batches(rows: Any, collate: Any, workers: int) -> list[list[int]]:
    loader = DataLoader(GuardedRows(rows), batch_size=2, collate_fn=GuardedCollator(collate), num_workers=workers)
    return list(batches_or_error(iter(loader)))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("error", "kind", "text", "code"), ERRORS)
def test_an_error_of_a_row(error: Exception, kind: type[Exception], text: str, code: int, workers: int) -> None:
    with pytest.raises(kind) as raised:
        batches(Rows(error), list, workers)
    outcome = outcome_of_error(raised.value)
    assert text in str(outcome.message)
    assert outcome.code == code
    assert any("in __getitem__" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_of_the_collator(workers: int) -> None:
    def collate(rows: list[int]) -> list[int]:
        if 5 in rows:
            raise CONTEXT.refusal(found="5", expected="another number")
        return rows

    with pytest.raises(Refusal) as raised:
        batches(range(8), collate, workers)
    assert raised.value.faults[0].found == "5"


def test_batches_without_an_error_are_as_they_were() -> None:
    assert batches(range(5), list, 1) == [[0, 1], [2, 3], [4]]
