"""How a rank says how it ended.

A rank that exits non-zero makes torch's elastic agent end the others, in the middle of a checkpoint if need be. A rank
that trained, stopped or ran out of budget therefore *returns normally*, and leaves a small file with its outcome; the
launcher turns all of them into one exit code. Only a failed rank exits non-zero: nobody can go on without it, and ranks
that wait for it in a collective would wait until that times out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.errors import ExitCode
from explicit_learning.files.atomic import write_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["EXIT_CODES", "RankOutcome", "Status", "outcome_path", "read_outcome", "write_outcome"]

Status = Literal["completed", "stopped", "budget_exhausted", "failed"]

EXIT_CODES: dict[Status, ExitCode] = {
    "completed": ExitCode.DONE,
    "stopped": ExitCode.STOPPED,
    "budget_exhausted": ExitCode.BUDGET_EXHAUSTED,
    "failed": ExitCode.INTERNAL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """How one rank ended.

    Attributes:
        status: ``completed`` trained all planned steps and saved; ``stopped`` is at a durable checkpoint.
        optimizer_step: Optimizer steps done in the run so far; ``None`` where a rank failed before it could say.
        checkpoint: Name of the newest complete checkpoint, if any.
        facts: What only a rank can know and the completion marker records (JSON object; rank 0's is the run's where
            ranks agree).
        message: For people, when something went wrong.
        exit_code: The code when the status's own does not fit (a refusal on a rank, say).
    """

    status: Status
    optimizer_step: int | None
    checkpoint: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    message: str | None = None
    exit_code: int | None = None

    @property
    def code(self) -> ExitCode:
        """The exit code this outcome stands for."""
        return EXIT_CODES[self.status] if self.exit_code is None else ExitCode(self.exit_code)


def outcome_path(folder: Path, rank: int) -> Path:
    """Return where a rank leaves its outcome; ``folder`` is the launch's private one."""
    return folder / f"outcome-{rank}.json"


def write_outcome(folder: Path, rank: int, outcome: RankOutcome) -> None:
    """Leave a rank's outcome for the launcher, whole or not at all.

    Raises:
        OSError: If it cannot be written.
        ValueError: If the facts are no JSON (NaN and infinity are not).
    """
    write_json(outcome_path(folder, rank), asdict(outcome))


def read_outcome(folder: Path, rank: int) -> RankOutcome | None:
    """Return what a rank left, or ``None`` if it ended without a word."""
    try:
        document = json.loads(outcome_path(folder, rank).read_bytes())
    except FileNotFoundError:
        return None
    return RankOutcome(**document)
