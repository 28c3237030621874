"""The reward trace: every completion, and everything that led to its score.

A reward is a claim too. Each row holds what is needed to compute it again without the dataset (the completion's text,
the gold answer, the answer's type and choices), so that a verifier does not have to trust the stored total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from explicit_learning.accounting.log import AppendLog, read_log
from explicit_learning.accounting.rows import ScoredCompletion, TraceRow
from explicit_learning.errors import Context, ExitCode, Fault, Refusal
from explicit_learning.files.typed_json import DEFECT, field_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from explicit_learning.accounting.binding import Binding
    from explicit_learning.accounting.frontier import Frontier
    from explicit_learning.accounting.set_aside import SetAside
    from explicit_learning.files.tree import Tree

__all__ = ["Trace", "read_trace"]

SCORED = field_names(ScoredCompletion)


def read_trace(tree: Tree, binding: Binding, *, may_be_torn: bool = False) -> Iterator[TraceRow]:
    """Yield all rows of a rank's trace (see `read_log`); the first one is line 2.

    Raises:
        Refusal: If the file is missing, unreadable or a link, belongs to something else, or has a line that is too
            long or breaks its schema.
    """
    return read_log(tree, binding, "trace", TraceRow, may_be_torn=may_be_torn)


class Trace:
    """One rank's open reward trace."""

    def __init__(self, binding: Binding, arm: str, running_commit: str, log: AppendLog[TraceRow]) -> None:
        self.binding = binding
        self._arm = arm
        self._running_commit = running_commit
        self._log = log

    @classmethod
    def open(
        cls, run: Path, binding: Binding, frontier: Frontier | None = None, *, arm: str, running_commit: str
    ) -> Trace:
        """Open a rank's trace at a frontier; ``None`` is the beginning, and makes the file if there is none.

        Args:
            run: The run directory.
            binding: What the trace belongs to.
            frontier: The position of the checkpoint that is resumed.
            arm: The run's arm, recorded in every row it writes.
            running_commit: Git commit of the code that runs now, recorded there, too.

        Raises:
            Refusal: If the file belongs to something else, or what lies before the frontier is not what was written.
            OSError: If the file cannot be read or written.
        """
        return cls(binding, arm, running_commit, AppendLog.open(run, binding, "trace", TraceRow, frontier=frontier))

    @property
    def set_aside(self) -> SetAside | None:
        """What opening took out of the file, for the event log."""
        return self._log.set_aside

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self._log.rows

    def append(self, completions: Iterable[ScoredCompletion]) -> None:
        """Write rows: all of them, or, if one is refused, none.

        Raises:
            Refusal: With every completion whose token count is not the number of its token ids, or with the first row
                that breaks its schema.
            OSError: If the disk is full or failing; the trace then refuses to go on.
        """
        batch = list(completions)
        if faults := [self._fault(row) for row in batch if row.token_count != len(row.completion_token_ids)]:
            raise Refusal(faults)
        self._log.append(map(self._row, batch))

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

    def _row(self, completion: ScoredCompletion) -> TraceRow:
        return TraceRow(
            run_id=self.binding.run_id,
            arm=self._arm,
            running_commit=self._running_commit,
            frozen_config_sha256=self.binding.frozen_config_sha256,
            **{name: getattr(completion, name) for name in SCORED},
        )

    def _fault(self, row: ScoredCompletion) -> Fault:
        return Context(gate="accounting", file=self._log.file, fix=DEFECT, exit_code=ExitCode.INTERNAL).fault(
            found=f"{len(row.completion_token_ids)} token ids of {row.slot_id}/{row.visit}/{row.generation}",
            expected=f"{row.token_count}, its token count",
        )
