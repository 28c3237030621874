"""How a launch ended, for programs: the one JSON object that `el run --json` ends with.

It is read back from the event log, where the end of every launch stands, so that it cannot say anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.provenance.events import read_events

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JSON_VARIABLE", "verdict"]

# Tells the launcher, which the command becomes, that a program is waiting for the answer.
JSON_VARIABLE = "EXPLICIT_LAUNCH_JSON"
AGAIN = "run the same command again: it goes on from the newest checkpoint"


def verdict(run: Path, code: ExitCode) -> dict[str, Any]:
    """Return the answer of a launch that has ended (``schemas/faults.schema.json``).

    Args:
        run: The run directory.
        code: The launch's exit code.

    Raises:
        OSError: If the event log cannot be read.
    """
    faults: list[dict[str, Any]] = []
    if code is not ExitCode.DONE:
        ends = [event["data"] for event in read_events(run)[0] if event["kind"] == "exit"]
        if ends:
            faults = ends[-1]["faults"] or [fault.to_json() for fault in _faults_of_ranks(run, code, ends[-1]["ranks"])]
    return {"ok": code is ExitCode.DONE, "exit_code": int(code), "faults": faults, "run": str(run)}


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
