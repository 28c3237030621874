"""How a launch ended, for programs: the one JSON object that `el run --json` ends with.

What became of the ranks is read back from the event log, where the end of every launch stands, so that it cannot say
anything else. A launch whose end could not be written, or that never had ranks, is answered too: a program that waits
for one JSON object must not be left with none, least of all when a disk is full.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.rundir.events import EVENTS_NAME, read_events

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["JSON_VARIABLE", "print_answer", "refused", "verdict"]

# Tells the launcher, which the command becomes, that a program is waiting for the answer.
JSON_VARIABLE = "EXPLICIT_LAUNCH_JSON"
AGAIN = "run the same command again: it goes on from the newest checkpoint"


def print_answer(document: dict[str, Any]) -> None:
    """Print a launch's answer to stdout where `JSON_VARIABLE` asks for it, in ASCII, which every reader takes."""
    if os.environ.get(JSON_VARIABLE):
        with suppress(OSError):  # nobody may listen any more
            print(json.dumps(document), flush=True)


def refused(faults: Iterable[Fault], code: ExitCode) -> dict[str, Any]:
    """Return the answer of a launcher that ended without ranks."""
    return {"ok": False, "exit_code": int(code), "faults": [fault.to_json() for fault in faults]}


def verdict(run: Path, code: ExitCode, *, launch_id: str) -> dict[str, Any]:
    """Return the answer of a launch that has ended (``schemas/faults.schema.json``).

    Args:
        run: The run directory.
        code: The launch's exit code.
        launch_id: Its random name: the log also holds the ends of earlier launches.
    """
    faults: list[dict[str, Any]] = []
    if code is not ExitCode.DONE:
        end = _end_of(run, launch_id)
        faults = end["faults"] if end is not None else [_unrecorded(run, code).to_json()]
        if end is not None and not faults:
            faults = [fault.to_json() for fault in _faults_of_ranks(run, code, end["ranks"])]
    return {"ok": code is ExitCode.DONE, "exit_code": int(code), "faults": faults, "run": str(run)}


def _end_of(run: Path, launch_id: str) -> dict[str, Any] | None:
    try:
        events, _ = read_events(run)
    except OSError:
        return None
    ends = [event["data"] for event in events if event["kind"] == "exit"]
    return next((end for end in reversed(ends) if end["launch_id"] == launch_id), None)


def _unrecorded(run: Path, code: ExitCode) -> Fault:
    return Fault(
        gate="run",
        file=str(run / EVENTS_NAME),
        found="no word of how this launch ended",
        expected="an event of its end",
        fix=f"read what it printed; see that its disk is whole and has space, then {AGAIN}",
        exit_code=code,
    )


def _faults_of_ranks(run: Path, code: ExitCode, ranks: list[dict[str, Any]]) -> list[Fault]:
    if code in {ExitCode.STOPPED, ExitCode.BUDGET_EXHAUSTED}:
        at = ranks[0]["checkpoint"] or "no checkpoint"
        stopped = code is ExitCode.STOPPED
        return [
            Fault(
                gate="run",
                file=str(run),
                found=f"{'stopped' if stopped else 'the token budget ended'} at {at}",
                expected="all planned steps",
                fix=AGAIN if stopped else "freeze a plan with a larger budget.max_completion_tokens_per_run",
                exit_code=code,
            )
        ]
    by_message: dict[str, list[int]] = {}
    for rank in ranks:
        by_message.setdefault(rank.get("message") or "it ended without a word", []).append(rank["rank"])
    return [
        Fault(
            gate="run",
            file=str(run / "logs" / f"rank-{numbers[0]}.log"),
            found=f"rank {', '.join(map(str, numbers))}: {message}",
            expected="all planned steps",
            fix=f"read that log, mend what it names, then {AGAIN}",
            exit_code=code,
        )
        for message, numbers in by_message.items()
    ]
