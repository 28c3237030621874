"""The reward trace: every completion, and everything that led to its score.

A reward is a claim too. Each row holds what is needed to compute it again without the data set (the completion's text,
the gold answer, the answer's type and choices), so that a verifier does not have to believe the stored total.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from explicit_learning.accounting.binding import Binding, log_file
from explicit_learning.accounting.log import AppendLog
from explicit_learning.errors import ExitCode, Fault, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from explicit_learning.accounting.frontier import Frontier
    from explicit_learning.accounting.set_aside import SetAside

__all__ = ["Trace", "TraceRow"]

GATE = "accounting"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One scored completion; ``schemas/trace-row.schema.json`` describes every field.

    The run's id, the running commit and the plan's hash are added by `Trace.append`. ``choices`` are the slot row's
    objects ``{"key", "text"}``.
    """

    slot_id: str
    visit: int
    generation: int
    token_count: int
    group_id: str
    view_id: str
    relation: Literal["FULL", "CONTROL", "MISSING", "SUBSTITUTE"]
    answer_type: Literal["choice", "number", "boolean", "text"]
    choices: tuple[dict[str, str], ...]
    gold: str
    optimizer_step: int
    completion_text: str
    completion_token_ids: tuple[int, ...]
    terminated: bool
    valid: bool
    reason: str | None
    parsed_answer: str | None
    normalised_prediction: str | None
    normalised_gold: str | None
    normaliser_branch: str
    components: dict[str, float]
    total: float
    importance_sampling_rejected: bool | None = None


class Trace:
    """One rank's open reward trace."""

    def __init__(self, binding: Binding, running_commit: str, log: AppendLog) -> None:
        self.binding = binding
        self._running_commit = running_commit
        self._log = log

    @classmethod
    def open(cls, run: Path, binding: Binding, frontier: Frontier | None = None, *, running_commit: str) -> Trace:
        """Open a rank's trace at a frontier; ``None`` is the beginning, and makes the file if there is none.

        Args:
            run: The run directory.
            binding: What the trace belongs to.
            frontier: The position of the checkpoint that is resumed.
            running_commit: Git commit of the code that runs now, recorded in every row it writes.

        Raises:
            Refusal: If the file belongs to something else, or what lies before the frontier is not what was written.
            OSError: If the file cannot be read or written.
        """
        file, header = log_file("trace", binding.rank), binding.header("trace")
        return cls(binding, running_commit, AppendLog.open(run, file, header=header, frontier=frontier))

    @property
    def set_aside(self) -> SetAside | None:
        """What opening took out of the file, for the event log."""
        return self._log.set_aside

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self._log.rows

    def append(self, rows: Iterable[TraceRow]) -> None:
        """Write rows: all of them, or, if one is refused, none.

        Raises:
            Refusal: With every row whose token count is not the number of its token ids.
            OSError: If the disk is full or failing; the trace then refuses to go on.
        """
        batch = list(rows)
        if faults := [self._fault(row) for row in batch if row.token_count != len(row.completion_token_ids)]:
            raise Refusal(faults)
        self._log.append(self._document(row) for row in batch)

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

    def _document(self, row: TraceRow) -> dict[str, Any]:
        return {
            "run_id": self.binding.run_id,
            **asdict(row),
            "running_commit": self._running_commit,
            "frozen_config_sha256": self.binding.frozen_config_sha256,
        }

    def _fault(self, row: TraceRow) -> Fault:
        return Fault(
            gate=GATE,
            file=self._log.file,
            found=f"{len(row.completion_token_ids)} token ids of {row.slot_id}/{row.visit}/{row.generation}",
            expected=f"{row.token_count}, its token count",
            fix="nothing was written: report this as a defect of the trainer",
            exit_code=ExitCode.INTERNAL,
        )
