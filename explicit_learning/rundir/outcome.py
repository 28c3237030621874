"""How a rank ended, in a file that the launcher reads.

A rank that exits non-zero makes torch's elastic agent end the others, in the middle of a checkpoint if need be. A rank
that trained, stopped or ran out of budget therefore *returns normally*, and leaves a small file with its outcome; the
launcher turns all of them into one exit code. Only a failed rank exits non-zero: nobody can go on without it, and ranks
that wait for it in a collective would wait until that times out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.files.typed_json import document, read_document, write_document
from explicit_learning.rundir.rank_report import PhaseName, PhaseUse, RankGpu, RankReport

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["EXIT_CODES", "RankOutcome", "Status", "outcome_path", "read_outcome", "write_outcome"]

GATE = "launch"
Status = Literal["completed", "stopped", "budget_exhausted", "failed"]

EXIT_CODES: dict[Status, ExitCode] = {
    "completed": ExitCode.DONE,
    "stopped": ExitCode.STOPPED,
    "budget_exhausted": ExitCode.BUDGET_EXHAUSTED,
    "failed": ExitCode.INTERNAL,
}


@document("rank-outcome")
@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """How one rank ended.

    Attributes:
        status: ``completed`` trained all planned steps and saved; ``stopped`` is at a durable checkpoint.
        optimizer_step: Optimizer steps done in the run so far; ``None`` where a rank failed before it could count.
        checkpoint: Name of the newest complete checkpoint, if any.
        message: For people, when something went wrong.
        faults: The same for programs, where the rank itself can explain it: what was found, and what to do.
        exit_code: The code where the status's own does not fit (a refusal on a rank, for example).
        peak_memory_bytes: Highest memory of this rank in this launch; ``None`` where it was not measured.
        peak_reserved_bytes: Highest GPU memory that torch had reserved for this rank in this launch; ``None`` on a CPU,
            and where it was not measured.
        device_seconds: Time from this launch's first step to its last; ``None`` where it was not measured.
        gpu: The rank's GPU; ``None`` on a CPU, and where it was not measured.
        phases: What each phase of this launch used; ``None`` where it was not measured.
        report: What a rank that completed the run measured; ``None`` in any other case.
    """

    status: Status
    optimizer_step: int | None
    checkpoint: str | None = None
    message: str | None = None
    exit_code: int | None = None
    peak_memory_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_seconds: float | None = None
    gpu: RankGpu | None = None
    phases: dict[PhaseName, PhaseUse] | None = None
    report: RankReport | None = None
    faults: tuple[Fault, ...] = ()

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
        Refusal: If it breaks its schema (exit code 70): a measurement is missing or impossible.
        OSError: If it cannot be written.
        ValueError: If a number is NaN or infinite, which JSON cannot hold.
    """
    write_document(outcome_path(folder, rank), outcome, gate=GATE)


def read_outcome(folder: Path, rank: int) -> RankOutcome | None:
    """Return what a rank left, or ``None`` if it left nothing.

    Raises:
        Refusal: If the file cannot be read or breaks its schema.
    """
    path = outcome_path(folder, rank)
    return read_document(path, RankOutcome, gate=GATE) if path.exists() else None
