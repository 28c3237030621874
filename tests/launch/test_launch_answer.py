"""How a launch that has ended is answered to a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.schema import validate
from explicit_learning.launch.launch_answer import launch_answer
from explicit_learning.rundir.events import append_event

if TYPE_CHECKING:
    from pathlib import Path

THIS = "0" * 32
FAULT = {"gate": "completion", "file": "x", "pointer": None, "found": "7 steps", "expected": "8", "fix": "report it"}


def rank(number: int, **fields: Any) -> dict[str, Any]:
    none = {"optimizer_step": 4, "checkpoint": None, "message": None, "peak_memory_bytes": 1, "device_seconds": 1.0}
    return {"rank": number, "status": "failed"} | none | fields


def ended(run: Path, code: ExitCode, *ranks: dict[str, Any], faults: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Write the end of an earlier launch and of this one, and return the answer of this one."""
    earlier = ("1" * 32, [rank(0, message="an earlier end")], 70)
    for launch_id, ranks_of, exit_code in (earlier, (THIS, list(ranks), int(code))):
        data = {"launch_id": launch_id, "exit_code": exit_code, "ranks": ranks_of, "faults": list(faults)}
        append_event(run, "exit", data)
    found = launch_answer(run, code, launch_id=THIS)
    assert validate(found, "faults", gate="test", file="answer") == []
    return found


def test_done(tmp_path: Path) -> None:
    answer = ended(tmp_path, ExitCode.DONE, rank(0, status="completed"))
    assert answer == {"ok": True, "exit_code": 0, "faults": [], "run": str(tmp_path)}


@pytest.mark.parametrize(
    ("code", "found", "fix"),
    [
        (ExitCode.STOPPED, "stopped at checkpoint-4", "run the same command again"),
        (ExitCode.BUDGET_EXHAUSTED, "the token budget ended at checkpoint-4", "larger budget"),
    ],
)
def test_ends_at_a_checkpoint(tmp_path: Path, code: ExitCode, found: str, fix: str) -> None:
    ranks = [rank(number, status="stopped", checkpoint="checkpoint-4") for number in (0, 1)]
    answer = ended(tmp_path, code, *ranks)
    (fault,) = answer["faults"]
    assert (answer["ok"], answer["exit_code"], fault["found"]) == (False, int(code), found)
    assert fix in fault["fix"]


def test_ranks_that_failed_are_named_by_message(tmp_path: Path) -> None:
    ranks = [rank(0, message="lost rank 1"), rank(1, message="out of memory"), rank(2, message="lost rank 1")]
    faults = ended(tmp_path, ExitCode.INTERNAL, *ranks)["faults"]
    assert [fault["found"] for fault in faults] == ["rank 0, 2: lost rank 1", "rank 1: out of memory"]
    assert [fault["file"] for fault in faults] == [str(tmp_path / "logs" / f"rank-{number}.log") for number in (0, 1)]


def test_faults_of_the_completion_rules_are_the_answer(tmp_path: Path) -> None:
    assert ended(tmp_path, ExitCode.CONTRACT, rank(0), faults=(FAULT,))["faults"] == [FAULT]


@pytest.mark.parametrize("log", ["", '{"torn', None])
def test_an_end_that_could_not_be_recorded_is_not_answered_with_an_earlier_one(tmp_path: Path, log: str | None) -> None:
    data = {"launch_id": "1" * 32, "exit_code": 75, "ranks": [rank(0, status="stopped")], "faults": []}
    append_event(tmp_path, "exit", data)
    if log is None:
        (tmp_path / "events.jsonl").unlink()
        (tmp_path / "events.jsonl").mkdir()  # cannot be read
    else:
        with (tmp_path / "events.jsonl").open("a") as stream:
            stream.write(log)
    answer = launch_answer(tmp_path, ExitCode.IO, launch_id=THIS)
    assert validate(answer, "faults", gate="test", file="answer") == []
    assert [fault["found"] for fault in answer["faults"]] == ["no event of the end of this launch"]
