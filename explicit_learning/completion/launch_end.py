"""How a launch ended: one exit code for all of its ranks, and the faults that explain it to people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Fault
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.rundir.outcome import RankOutcome, Status

__all__ = [
    "LaunchEnd",
    "agreed_status",
    "defect_fault",
    "end_faults",
    "exit_code_of_ranks",
    "unrecorded_fault",
]

AGAIN = "run the same command again: it continues from the newest checkpoint"
FROM_THE_BEGINNING = "run the same command again: it starts from the beginning"
UNEXPLAINED = (
    "read that log; fix what it names and run the same command again, or report this as a defect with the log "
    "(CONTRIBUTING.md says where)"
)
CONTEXT = Context(gate="run")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnd:
    """The end of a launch.

    Attributes:
        exit_code: The program's exit code.
        faults: Why the run is not complete; empty where it is.
    """

    exit_code: ExitCode
    faults: tuple[Fault, ...]


def agreed_status(outcomes: Sequence[RankOutcome]) -> Status:
    """Return the status of all ranks together: if one failed or they disagree, it is ``failed``."""
    found = {outcome.status for outcome in outcomes}
    return found.pop() if len(found) == 1 else "failed"


def exit_code_of_ranks(status: Status, outcomes: Sequence[RankOutcome]) -> ExitCode:
    """Return the status's code; of failures, the first that has a code of its own."""
    if status != "failed":
        return outcomes[0].code
    codes = [outcome.code for outcome in outcomes if outcome.status == "failed"]
    return next((code for code in codes if code is not ExitCode.INTERNAL), ExitCode.INTERNAL)


def end_faults(run: Path, code: ExitCode, outcomes: Sequence[RankOutcome]) -> tuple[Fault, ...]:
    """Return why ranks did not reach the last planned step: one fault for a stop, or one for each failure.

    Args:
        run: The run directory.
        code: What `exit_code_of_ranks` gave.
        outcomes: Each rank's outcome, by rank.
    """
    context = Context(gate="run", file=str(run), exit_code=code)
    at, expected = outcomes[0].checkpoint, "all planned steps"
    if code is ExitCode.STOPPED:
        found = f"stopped at {at}" if at else "stopped before the first checkpoint"
        return (context.fault(found=found, expected=expected, fix=AGAIN if at else FROM_THE_BEGINNING),)
    if code is ExitCode.BUDGET_EXHAUSTED:
        found = f"the token budget ended at {at}" if at else "the token budget ended before the first checkpoint"
        fix = "freeze a plan with a larger budget.max_completion_tokens_per_run"
        return (context.fault(found=found, expected=expected, fix=fix),)
    if explained := tuple(dict.fromkeys(fault for outcome in outcomes for fault in outcome.faults)):
        return explained
    by_message: dict[str, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        by_message.setdefault(outcome.message or f"{outcome.status}, without a message", []).append(rank)
    return tuple(
        context.fault(
            file=run / layout.rank_log(ranks[0]),
            found=f"rank {', '.join(map(str, ranks))}: {message}",
            expected=expected,
            fix=UNEXPLAINED if code is ExitCode.INTERNAL else f"read that log, fix what it names, then {AGAIN}",
        )
        for message, ranks in by_message.items()
    )


def defect_fault(run: Path, error: Exception) -> Fault:
    """Return the fault of a run that a defect of this program kept from being completed."""
    return CONTEXT.fault(
        file=run,
        found=f"internal error after the ranks had ended: {type(error).__name__}: {error}",
        expected="no defect",
        fix=f"report this as a defect, with the launcher's log in {run / layout.LOGS} (CONTRIBUTING.md says where)",
        exit_code=ExitCode.INTERNAL,
    )


def unrecorded_fault(run: Path, error: Exception, code: ExitCode) -> Fault:
    """Return the fault of a launch whose end could not be written into the run directory."""
    is_complete = (run / layout.COMPLETION_MARKER).exists()
    then = "the run itself is complete" if is_complete else f"then {AGAIN}"
    return CONTEXT.fault(
        file=run,
        found=f"the end of this launch could not be recorded: {error}",
        expected="a record of its end",
        fix=f"check that the disk of the run is whole and has space; {then}",
        exit_code=code,
    )
