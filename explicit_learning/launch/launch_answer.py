"""What a launcher shows: lines for people, and the one JSON object that `el run --json` ends with, for programs.

The faults of a launch that has ended are read back from the event log, where the end of every launch stands, so that
both always agree. A launch whose end could not be written, or that never had ranks, is answered too: a program that
waits for one JSON object must not be left with none, least of all when a disk is full.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Fault, json_answer, print_json
from explicit_learning.rundir.events import EVENTS_NAME, read_events

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.rundir.outcome import RankOutcome

__all__ = ["JSON_VARIABLE", "launch_answer", "print_answer", "print_line", "print_messages"]

# Set by the command line, which becomes the launcher, when a program waits for the answer.
JSON_VARIABLE = "EXPLICIT_LAUNCH_JSON"
AGAIN = "run the same command again: it continues from the newest checkpoint"


def print_line(text: str) -> None:
    """Write a line to stderr, if it is still open: the run does not end because nobody reads."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # what is still buffered would fail again when the interpreter ends, and change the exit code
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


def print_messages(outcomes: Sequence[RankOutcome]) -> None:
    """Show what the ranks reported, each message once."""
    by_message: dict[str, list[str]] = {}
    for rank, outcome in enumerate(outcomes):
        if outcome.message:
            by_message.setdefault(outcome.message, []).append(str(rank))
    for message, ranks in by_message.items():
        print_line(f"rank {', '.join(ranks)}: {message}")


def print_answer(document: dict[str, Any]) -> None:
    """Print the answer to stdout where `JSON_VARIABLE` asks for it."""
    if os.environ.get(JSON_VARIABLE):
        with suppress(OSError):  # nobody may read any more
            print_json(document)


def launch_answer(run: Path, code: ExitCode, *, launch_id: str) -> dict[str, Any]:
    """Return the answer of a launch that has ended (``schemas/faults.schema.json``).

    Args:
        run: The run directory.
        code: The launch's exit code.
        launch_id: Its random name: the log also holds the ends of earlier launches.
    """
    faults: Sequence[Fault] = ()
    if code is not ExitCode.DONE:
        context = Context(gate="run", file=str(run), exit_code=code)
        end = _end_of(run, launch_id)
        if end is None:
            faults = [_unrecorded_end(context, run)]
        else:
            faults = [Fault(**fault) for fault in end["faults"]] or _faults_of_ranks(context, run, code, end["ranks"])
    return json_answer(faults, code=code, run=str(run))


def _end_of(run: Path, launch_id: str) -> dict[str, Any] | None:
    try:
        events, _ = read_events(run)
    except OSError:
        return None
    ends = [event["data"] for event in events if event["kind"] == "exit"]
    return next((end for end in reversed(ends) if end["launch_id"] == launch_id), None)


def _unrecorded_end(context: Context, run: Path) -> Fault:
    return context.fault(
        file=run / EVENTS_NAME,
        found="no event of the end of this launch",
        expected='an event "exit" with its exit code and the outcome of each rank',
        fix=f"read what the launch printed; check that the disk works and has free space, then {AGAIN}",
    )


def _faults_of_ranks(context: Context, run: Path, code: ExitCode, ranks: list[dict[str, Any]]) -> list[Fault]:
    expected = "all planned steps"
    at = ranks[0].get("checkpoint") or "no checkpoint"
    if code is ExitCode.STOPPED:
        return [context.fault(found=f"stopped at {at}", expected=expected, fix=AGAIN)]
    if code is ExitCode.BUDGET_EXHAUSTED:
        fix = "freeze a plan with a larger budget.max_completion_tokens_per_run"
        return [context.fault(found=f"the token budget ended at {at}", expected=expected, fix=fix)]
    by_message: dict[str, list[int]] = {}
    for rank in ranks:
        by_message.setdefault(rank.get("message") or "it left no outcome", []).append(rank["rank"])
    return [
        context.fault(
            file=run / "logs" / f"rank-{numbers[0]}.log",
            found=f"rank {', '.join(map(str, numbers))}: {message}",
            expected=expected,
            fix=f"read that log, fix what it names, then {AGAIN}",
        )
        for message, numbers in by_message.items()
    ]
