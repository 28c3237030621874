"""How a rank says how it ended.

A rank that exits non-zero makes torch's elastic agent kill the others, in the middle of a checkpoint if need be. Ranks
therefore *return normally* and leave a small file with their outcome; the launcher turns all of them into one exit
code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from explicit_learning.errors import ExitCode

__all__ = ["EXIT_CODES", "RankOutcome", "Status"]

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
        optimizer_step: Optimizer steps done in the run so far.
        checkpoint: Name of the newest complete checkpoint, if any.
        facts: What only a rank can know and the completion marker records (JSON object; rank 0's is the run's where
            ranks agree).
        message: For people, when something went wrong.
        exit_code: The code when the status's own does not fit (a refusal on a rank, say).
    """

    status: Status
    optimizer_step: int
    checkpoint: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    message: str | None = None
    exit_code: int | None = None
