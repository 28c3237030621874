"""Faults and exit codes: how this program refuses.

A researcher whose run was refused at night needs to know which file and field are wrong, what was found, what would be
right, and what to do. A `Fault` holds exactly these, so that the terminal, ``--json`` and the event log show the same.
Gates *collect* faults and raise one `Refusal` at the end, because fixing ten mistakes should take one round, not ten.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from explicit_learning.errors.invisible import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FOUND_LIMIT", "ExitCode", "Fault", "Refusal", "beginning_of", "exit_code_of", "found_text"]

FOUND_LIMIT = 200  # characters of what was found that a fault shows


class ExitCode(IntEnum):
    """The program's exit codes: stable, documented in the README, after BSD's ``sysexits.h`` where a name fits."""

    DONE = 0
    USAGE = 64
    CONTRACT = 65
    HARDWARE = 69
    INTERNAL = 70
    OUTPUT = 73
    IO = 74
    STOPPED = 75
    ENVIRONMENT = 78
    BUDGET_EXHAUSTED = 79


# When several gates refuse at once, the code of the first in this list is the program's: a broken plan explains a
# hardware mismatch more often than the other way round.
PRECEDENCE = (
    ExitCode.USAGE,
    ExitCode.CONTRACT,
    ExitCode.ENVIRONMENT,
    ExitCode.HARDWARE,
    ExitCode.OUTPUT,
    ExitCode.IO,
    ExitCode.INTERNAL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One reason to refuse.

    Attributes:
        gate: The check that found the fault, such as ``plan``, ``data`` or ``hardware``.
        file: The file that is wrong, as the user named it; a row of a JSON Lines file is ``FILE:LINE``. ``None`` if
            no file is.
        pointer: JSON pointer (RFC 6901) or field in that file; ``""`` means the whole document.
        found: What is there.
        expected: What would be right.
        fix: What to do about it, as an instruction.
        exit_code: The exit code this fault alone would lead to.
    """

    gate: str
    file: str | None = None
    pointer: str | None = None
    found: str
    expected: str
    fix: str
    exit_code: ExitCode = ExitCode.CONTRACT

    def to_json(self) -> dict[str, str | None]:
        """Return the fault in the form of ``schemas/faults.schema.json``."""
        return {
            "gate": self.gate,
            "file": self.file,
            "pointer": self.pointer,
            "found": self.found,
            "expected": self.expected,
            "fix": self.fix,
        }

    def __str__(self) -> str:
        """Return the fault as the terminal shows it: a headline and three labelled lines.

        Names in files and documents can hold characters that a terminal obeys, or none that is seen; these are escaped.
        Further lines of what was found, such as another program's message, are indented.
        """
        where = " ".join(part for part in (self.file, self.pointer) if part)
        found = "\n            ".join(map(escaped, self.found.split("\n")))
        return "\n".join(
            (
                escaped(f"refused [{self.gate}] {where or '(no file)'}"),
                f"  found:    {found}",
                escaped(f"  expected: {self.expected}"),
                escaped(f"  fix:      {self.fix}"),
            )
        )


class Refusal(Exception):  # noqa: N818 - a refusal is an answer to the user, not a defect of the program
    """Raised once, with everything that was found wrong."""

    def __init__(self, faults: Iterable[Fault] | Fault) -> None:
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        if not self.faults:
            raise AssertionError("a refusal needs a fault")
        super().__init__("\n".join(map(str, self.faults)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how `pickle` makes the refusal again: from its faults, not from its text as other exceptions."""
        return type(self), (self.faults,), self.__dict__

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for all faults together."""
        return exit_code_of(self.faults)


def exit_code_of(faults: Iterable[Fault]) -> ExitCode:
    """Return the one exit code for several faults (`DONE` for none), by `PRECEDENCE`."""
    codes = {fault.exit_code for fault in faults}
    return next((code for code in PRECEDENCE if code in codes), max(codes, default=ExitCode.DONE))


def found_text(value: Any) -> str:  # noqa: ANN401 - any JSON value, or what a library put in its place
    """Return a short, single-line rendering of a value for a fault's ``found``; characters nobody sees are escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    text = escaped(text)
    return text if len(text) <= FOUND_LIMIT else f"{beginning_of(text, FOUND_LIMIT)} ({len(text)} characters)"


def beginning_of(text: str, most: int) -> str:
    """Return a text that has no more than a number of characters; one that was cut ends in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
