"""Collecting faults without drowning the reader.

One wrong line in a generator makes every row wrong. All faults are counted; only the first ones are explained, because
nobody reads forty thousand, and explaining each takes a millisecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["DEFAULT_LIMIT", "FaultCollector"]

DEFAULT_LIMIT = 100


class FaultCollector:
    """Keeps the first faults and counts the rest."""

    def __init__(self, gate: str, limit: int = DEFAULT_LIMIT) -> None:
        self.gate = gate
        self._limit = limit
        self._faults: list[Fault] = []
        self._more = 0

    def add(self, fault: Fault) -> None:
        """Take one fault."""
        if self.is_full:
            self._more += 1
        else:
            self._faults.append(fault)

    def extend(self, faults: Iterable[Fault]) -> None:
        """Take several faults."""
        for fault in faults:
            self.add(fault)

    def explain(self, explanation: Callable[[], Iterable[Fault]]) -> None:
        """Take the faults of something known to be wrong; beyond the limit it is counted once and not explained."""
        if self.is_full:
            self._more += 1
        else:
            self.extend(explanation())

    def report(self, *, file: str, pointer: str | None, found: str, expected: str, fix: str) -> None:
        """Take one fault of this collector's gate."""
        self.add(Fault(gate=self.gate, file=file, pointer=pointer, found=found, expected=expected, fix=fix))

    @property
    def is_full(self) -> bool:
        """Whether further faults are only counted."""
        return len(self._faults) >= self._limit

    def faults(self) -> list[Fault]:
        """Return the faults kept, and one more that says how many there were beside them."""
        if not self._more:
            return list(self._faults)
        rest = Fault(
            gate=self.gate,
            file=None,
            found=f"at least {self._more:,} faults more",
            expected="none",
            fix=f"mend the {len(self._faults)} shown first: they often have one cause",
        )
        return [*self._faults, rest]
