"""The ledger: every sampled completion's token count, against a hard ceiling.

"The same number of completions" is a claim about arms that are compared, so sampling is counted where it happens. A
completion that is counted twice, or under a name that the plan does not have, is an error of the program: it is refused
before anything is written, never corrected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from explicit_learning.accounting.log import AppendLog, read_log
from explicit_learning.accounting.rows import LedgerEntry
from explicit_learning.errors import Context, ExitCode, Fault, Refusal
from explicit_learning.files.typed_json import DEFECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from explicit_learning.accounting.binding import Binding
    from explicit_learning.accounting.frontier import Frontier
    from explicit_learning.accounting.rows import SampledCompletion
    from explicit_learning.accounting.set_aside import SetAside
    from explicit_learning.files.tree import Tree

__all__ = ["Ledger", "Seen", "read_ledger"]


class Seen:
    """Which completions were counted: one integer, as a bit set of generations, for each (slot, visit)."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, int], int] = {}

    def add(self, slot_id: str, visit: int, generation: int) -> bool:
        """Note a completion; return whether it is new."""
        key, bit = (slot_id, visit), 1 << generation
        known = self.groups.get(key, 0)
        self.groups[key] = known | bit
        return not known & bit

    def has(self, slot_id: str, visit: int, generation: int) -> bool:
        """Return whether a completion was noted."""
        return bool(self.groups.get((slot_id, visit), 0) >> generation & 1)


def read_ledger(tree: Tree, binding: Binding, *, torn_end: bool = False) -> Iterator[LedgerEntry]:
    """Yield all entries of a rank's ledger; the first one is line 2 (see `read_log`).

    Raises:
        Refusal: If the file is missing, unreadable or a link, belongs to something else, or has a line that is too
            long or breaks its schema.
    """
    return read_log(tree, binding, "ledger", LedgerEntry, torn_end=torn_end)


class Ledger:
    """One rank's open ledger."""

    def __init__(self, binding: Binding, log: AppendLog[LedgerEntry], seen: Seen) -> None:
        self.binding = binding
        self._log = log
        self._seen = seen
        self._context = Context(gate="accounting", file=log.file, fix=DEFECT, exit_code=ExitCode.INTERNAL)

    @classmethod
    def open(cls, run: Path, binding: Binding, frontier: Frontier | None = None) -> Ledger:
        """Open a rank's ledger at a frontier; ``None`` is the beginning, and makes the file if there is none.

        Args:
            run: The run directory.
            binding: What the ledger belongs to.
            frontier: The position of the checkpoint that is resumed.

        Raises:
            Refusal: If the file belongs to something else, or what lies before the frontier is not what was written.
            OSError: If the file cannot be read or written.
        """
        seen = Seen()

        def visit(entry: LedgerEntry) -> None:
            seen.add(entry.slot_id, entry.visit, entry.generation)

        return cls(binding, AppendLog.open(run, binding, "ledger", LedgerEntry, frontier=frontier, visit=visit), seen)

    @property
    def set_aside(self) -> SetAside | None:
        """What opening took out of the file, for the event log."""
        return self._log.set_aside

    @property
    def rows(self) -> int:
        """Completions so far."""
        return self._log.rows

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return self._log.tokens

    @property
    def remaining_tokens(self) -> int:
        """Tokens that this rank may still sample."""
        return self.binding.rank_ceiling - self._log.tokens

    def append(self, completions: Iterable[SampledCompletion]) -> None:
        """Count completions: all of them, or, if one is refused, none.

        Raises:
            Refusal: With every completion that is a duplicate, has an unknown generation, a negative visit or a count
                below 1; if the total would exceed the rank's ceiling; or with the first entry that breaks its schema.
            OSError: If the disk is full or failing; the ledger then refuses to go on.
        """
        batch = list(completions)
        if faults := list(self._faults(batch)):
            raise Refusal(faults)
        self._log.append(
            LedgerEntry(
                run_id=self.binding.run_id,
                slot_id=completion.slot_id,
                visit=completion.visit,
                generation=completion.generation,
                token_count=completion.token_count,
            )
            for completion in batch
        )
        for completion in batch:
            self._seen.add(completion.slot_id, completion.visit, completion.generation)

    def frontier(self) -> Frontier:
        """Flush to the disk and return the position of the end.

        Raises:
            OSError: If the disk is failing.
        """
        return self._log.frontier()

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _faults(self, batch: list[SampledCompletion]) -> Iterator[Fault]:
        fault, fresh = self._context.fault, Seen()
        for completion in batch:
            key = completion.slot_id, completion.visit, completion.generation
            name = f"completion {self.binding.run_id}/{'/'.join(map(str, key))}"
            if not 0 <= completion.generation < self.binding.num_generations:
                yield fault(found=name, expected=f"a generation from 0 to {self.binding.num_generations - 1}")
            elif completion.visit < 0:
                yield fault(found=name, expected="a visit of 0 or more")
            elif self._seen.has(*key):
                yield fault(found=f"{name}, which was counted before", expected="each completion once")
            elif not fresh.add(*key):
                yield fault(found=f"{name} twice in one batch", expected="each completion once")
            if completion.token_count < 1:
                yield fault(found=f"{completion.token_count} tokens for {name}", expected="at least 1 token")
        total = sum(completion.token_count for completion in batch)
        if total > self.remaining_tokens:
            ceiling = f"{self.binding.rank_ceiling:,}, the ceiling of rank {self.binding.rank}"
            yield fault(found=f"{self.tokens:,} + {total:,} tokens", expected=f"at most {ceiling}")
