"""Rows of the batches to come, built by threads of the rank while it trains.

Building a row means decoding its images, for which Pillow releases the interpreter's lock: threads do it as fast as
processes, and need no shared memory, no fork, and nobody who keeps them alive through a stop signal. Which rows a rank
gets, and in which order, is decided before any thread sees them, and a row holds no randomness: the number of threads
changes no result.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset, Sampler

from explicit_learning.errors import Context, ExitCode
from explicit_learning.training.arguments import PEER_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from torch.utils.data import BatchSampler

__all__ = ["Batch", "BatchesAhead", "RowsAhead"]

CONTEXT = Context(gate="data", exit_code=ExitCode.IO)


class Batch(list[int]):
    """The row indices of one batch, with the batches that follow it.

    Attributes:
        number: Its place among the rank's batches, from 0.
        following: The next batches, in order; each is built while those before it are trained on.
    """

    def __init__(self, indices: Iterable[int], *, number: int) -> None:
        super().__init__(indices)
        self.number = number
        self.following: tuple[Batch, ...] = ()


class BatchesAhead(Sampler[Batch]):
    """One rank's batches of row indices, in order, each with the batches that follow it.

    Ranks take turns: of every ``ranks`` batches each gets one, and batches that are not enough for all are left out, as
    Accelerate shards them. Reading ahead costs a few integers: a loader that skips the batches of an earlier launch
    builds none of their rows.
    """

    def __init__(self, batches: BatchSampler, *, ranks: int, rank: int, ahead: int) -> None:
        """Take the batches.

        Args:
            batches: Those of all ranks, in turn.
            ranks: How many ranks there are.
            rank: This rank.
            ahead: How many batches are known beyond the one that is given out.
        """
        self._batches = batches
        self._ranks = ranks
        self._rank = rank
        self._ahead = ahead

    def __iter__(self) -> Iterator[Batch]:
        turns = zip(*[iter(self._batches)] * self._ranks, strict=False)
        batches = (Batch(turn[self._rank], number=number) for number, turn in enumerate(turns))
        known = deque(islice(batches, self._ahead + 1))
        while known:
            batch = known.popleft()
            batch.following = tuple(known)
            yield batch
            known.extend(islice(batches, 1))

    def __len__(self) -> int:
        return len(self._batches) // self._ranks


class RowsAhead(Dataset[Any]):
    """Rows that are asked for in batches, and built by threads before that."""

    def __init__(self, rows: Dataset[Any], *, threads: int, seconds: float = PEER_TIMEOUT) -> None:
        """Take the rows.

        Args:
            rows: The rows, by index; several threads ask for them at once.
            threads: How many threads build rows; with 0, a row is built in the rank, when its batch is asked for.
            seconds: How long the rank waits for a batch.
        """
        self._rows = rows
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rows") if threads else None
        self._seconds = seconds
        self._started: dict[int, list[Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._rows)  # type: ignore[arg-type] # datasets of rows have a length

    def __getitems__(self, batch: Batch) -> list[Any]:
        """Return a batch's rows, and have the batches that follow it built.

        Raises:
            Refusal: If a row is not there after the time that a rank waits for one.
            Exception: Whatever was raised while a row of this batch was built: of the first such row, the very object.
        """
        if self._pool is None:
            return [self._rows[index] for index in batch]
        for each in (batch, *batch.following):
            if each.number not in self._started:
                self._started[each.number] = [self._pool.submit(self._rows.__getitem__, index) for index in each]
        rows = self._started.pop(batch.number)
        if late := wait(rows, self._seconds).not_done:
            raise CONTEXT.refusal(
                found=f"{len(late)} of a batch's {len(rows)} rows were not read after {self._seconds:.0f} s",
                expected="every file of the dataset can be read",
                fix="look at the disk or network that holds the dataset, then start the run again",
            )
        return [row.result() for row in rows]

    def close(self) -> None:
        """Build nothing more: rows that no thread has begun are dropped, and each thread ends after its row."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._started.clear()
