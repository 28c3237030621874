"""Errors of a data loader, raised in the rank as they were raised in the worker.

PyTorch sends only the class and the text of a worker's exception to the rank, and makes a new one from the text. Most
exceptions of libraries lose their attributes in this way, such as an `OSError` its number, and a `Refusal` cannot be
made from a text at all. Here a batch that failed is a value, which holds the exception and travels like any batch.
"""

from __future__ import annotations

import pickle
import traceback
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["FailedBatch", "GuardedCollator", "GuardedRows", "batches_or_error"]


class FailedBatch:
    """In place of a batch: the exception that was raised while it was made, with the traceback as a note."""

    def __init__(self, error: Exception) -> None:
        note = f"raised in the data loader:\n{''.join(traceback.format_exception(error))}"
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - this process's own
            self.error = error
        except Exception:  # noqa: BLE001 - any class may fail in any way
            self.error = RuntimeError(f"{type(error).__name__}: {error}")
        self.error.add_note(note)


class GuardedRows(Dataset[Any]):
    """A dataset whose rows are asked for in batches; an error becomes a `FailedBatch`."""

    def __init__(self, rows: Dataset[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)  # type: ignore[arg-type] # datasets of rows have a length

    def __getitems__(self, indices: Sequence[int]) -> list[Any] | FailedBatch:
        try:
            return [self._rows[index] for index in indices]
        except Exception as error:  # noqa: BLE001 - raised again in the rank
            return FailedBatch(error)


class GuardedCollator:
    """A collator; an error becomes a `FailedBatch`, and a batch that has failed already stays one."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, rows: list[Any] | FailedBatch) -> Any:
        """Return the batch of these rows."""
        if isinstance(rows, FailedBatch):
            return rows
        try:
            return self._collate(rows)
        except Exception as error:  # noqa: BLE001 - raised again in the rank
            return FailedBatch(error)


def batches_or_error(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield a loader's batches.

    Raises:
        Exception: The one that was raised while the next batch was made.
    """
    for batch in batches:
        if isinstance(batch, FailedBatch):
            raise batch.error
        yield batch
