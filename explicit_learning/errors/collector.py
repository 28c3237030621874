"""Collecting faults, each with the context in which it was found, and showing no more than a person reads.

A check states once, as a `Context`, which gate it is, which file it looks at and which exit code follows. After that it
states only what is wrong. Faults are collected and raised together, because fixing ten mistakes should take one round.

One wrong line in a generator makes every row wrong. All faults are counted; only the first ones are explained, because
nobody reads forty thousand, and explaining each takes a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from explicit_learning.errors.faults import FOUND_LIMIT, ExitCode, Fault, Refusal, beginning_of
from explicit_learning.errors.invisible import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["LIMIT", "Context", "FaultCollector"]

LIMIT = 100  # faults that are explained
POINTER_LIMIT = 500  # characters of a pointer: a name in a document can have millions


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What all faults of a check have in common.

    Attributes:
        gate: Name of the check.
        file: The file it looks at, if it is one.
        subject: What it looks at inside the file, such as a row's id; shown in brackets after what was found.
        fix: What to do about a fault that names nothing better.
        exit_code: The exit code that its faults lead to.
    """

    gate: str
    file: str | None = None
    subject: str | None = None
    fix: str | None = None
    exit_code: ExitCode = ExitCode.CONTRACT

    def at(self, file: object, subject: str | None = None) -> Context:
        """Return the same context for another file, or for a subject inside it.

        A subject is a name out of a file: of a long one the beginning is kept, and line breaks are escaped.
        """
        shown = None if subject is None else beginning_of(escaped(subject), FOUND_LIMIT)
        return replace(self, file=str(file), subject=shown)

    def fault(
        self,
        *,
        found: str,
        expected: str,
        fix: str | None = None,
        pointer: str | None = None,
        file: object = None,
        exit_code: ExitCode | None = None,
    ) -> Fault:
        """Return a fault found in this context; what is given here takes precedence over the context.

        Raises:
            AssertionError: If neither names a fix.
        """
        advice = self.fix if fix is None else fix
        if advice is None:
            raise AssertionError("a fault needs a fix")
        return Fault(
            gate=self.gate,
            file=self.file if file is None else str(file),
            pointer=None if pointer is None else beginning_of(pointer, POINTER_LIMIT),
            found=found if self.subject is None else f"{found} ({self.subject})",
            expected=expected,
            fix=advice,
            exit_code=self.exit_code if exit_code is None else exit_code,
        )

    def refusal(self, **fault: Any) -> Refusal:  # noqa: ANN401 - the arguments of `fault`
        """Return a refusal with one fault, to be raised; it takes the arguments of `fault`."""
        return Refusal(self.fault(**fault))


class FaultCollector:
    """Keeps the first faults and counts the rest."""

    def __init__(self, context: Context | str) -> None:
        """Start with no faults.

        Args:
            context: What the faults of `report` have in common; a text is short for a context with that gate.
        """
        self.context = Context(gate=context) if isinstance(context, str) else context
        self._faults: list[Fault] = []
        self._more = 0

    @property
    def gate(self) -> str:
        """Name of the check."""
        return self.context.gate

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

    def report(self, **fault: Any) -> None:  # noqa: ANN401 - the arguments of `Context.fault`
        """Take one fault in this collector's context; it takes the arguments of `Context.fault`."""
        self.add(self.context.fault(**fault))

    @property
    def is_full(self) -> bool:
        """Whether further faults are only counted."""
        return len(self._faults) >= LIMIT

    def faults(self) -> list[Fault]:
        """Return the faults kept, and one more with the number of the rest."""
        if not self._more:
            return list(self._faults)
        rest = Context(gate=self.gate).fault(
            found=f"at least {self._more:,} more faults",
            expected="none",
            fix=f"fix the {len(self._faults)} shown first: they often have one cause",
        )
        return [*self._faults, rest]

    def refuse_if_any(self) -> None:
        """Raise everything that was collected, if anything was.

        Raises:
            Refusal: With all faults.
        """
        if faults := self.faults():
            raise Refusal(faults)
