"""The ledger: every sampled completion's token count, against a hard ceiling.

"The same number of completions" is a claim about arms that are compared, so sampling is counted where it happens, and
a completion that is counted twice, or under a name the plan does not know, is an error of the program: it is refused
before anything is written, never corrected.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from explicit_learning.accounting.binding import Binding, log_file
from explicit_learning.accounting.log import AppendLog
from explicit_learning.errors import ExitCode, Fault, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from explicit_learning.accounting.frontier import Frontier
    from explicit_learning.accounting.set_aside import SetAside

__all__ = ["Ledger", "LedgerEntry", "Seen"]

GATE = "accounting"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One sampled completion; with the run's id, (slot, visit, generation) names it.

    Attributes:
        slot_id: The comparison slot.
        visit: Earlier uses of the slot in this run.
        generation: Index of the completion in its group, from 0.
        token_count: Sampled tokens, terminal token included, padding excluded.
    """

    slot_id: str
    visit: int
    generation: int
    token_count: int


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


class Ledger:
    """One rank's open ledger."""

    def __init__(self, binding: Binding, log: AppendLog, seen: Seen) -> None:
        self.binding = binding
        self._log = log
        self._seen = seen

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

        def visit(row: dict[str, Any]) -> None:
            seen.add(row["slot_id"], row["visit"], row["generation"])

        file, header = log_file("ledger", binding.rank), binding.header("ledger")
        return cls(binding, AppendLog.open(run, file, header=header, frontier=frontier, visit=visit), seen)

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

    def append(self, entries: Iterable[LedgerEntry]) -> None:
        """Count completions: all of them, or, if one is refused, none.

        Raises:
            Refusal: With every entry that is a duplicate, has an unknown generation, a negative visit or a count below
                1; and if the total would exceed the rank's ceiling.
            OSError: If the disk is full or failing; the ledger then refuses to go on.
        """
        batch = list(entries)
        if faults := list(self._faults(batch)):
            raise Refusal(faults)
        self._log.append({"run_id": self.binding.run_id, **asdict(entry)} for entry in batch)
        for entry in batch:
            self._seen.add(entry.slot_id, entry.visit, entry.generation)

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

    def _faults(self, batch: list[LedgerEntry]) -> Iterator[Fault]:
        fresh = Seen()
        for entry in batch:
            name = f"completion {self.binding.run_id}/{entry.slot_id}/{entry.visit}/{entry.generation}"
            if not 0 <= entry.generation < self.binding.num_generations:
                yield self._fault(name, f"a generation from 0 to {self.binding.num_generations - 1}")
            elif entry.visit < 0:
                yield self._fault(name, "a visit from 0")
            elif self._seen.has(entry.slot_id, entry.visit, entry.generation):
                yield self._fault(f"{name}, which was counted before", "each completion once")
            elif not fresh.add(entry.slot_id, entry.visit, entry.generation):
                yield self._fault(f"{name} twice in one batch", "each completion once")
            if entry.token_count < 1:
                yield self._fault(f"{entry.token_count} tokens for {name}", "at least 1 token")
        total = sum(entry.token_count for entry in batch)
        if total > self.remaining_tokens:
            found = f"{self.tokens:,} + {total:,} tokens"
            yield self._fault(found, f"at most {self.binding.rank_ceiling:,}, rank {self.binding.rank}'s ceiling")

    def _fault(self, found: str, expected: str) -> Fault:
        fix = "nothing was written: report this as a defect of the trainer"
        return Fault(
            gate=GATE, file=self._log.file, found=found, expected=expected, fix=fix, exit_code=ExitCode.INTERNAL
        )
