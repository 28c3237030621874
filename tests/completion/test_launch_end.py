"""The faults with which a launch ends, and what its record holds of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.completion import lifecycle
from explicit_learning.completion.launch_end import end_faults
from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode, Fault, json_answer
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.schema import validate
from explicit_learning.files.tree import FolderTree
from explicit_learning.rundir.events import read_events
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.run_manifest import set_status

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.finished_run import Run


def failed(message: str | None = None, **fields: Any) -> RankOutcome:
    return RankOutcome(status="failed", optimizer_step=4, message=message, **fields)


@pytest.mark.parametrize(
    ("status", "code", "found", "fix"),
    [
        ("stopped", ExitCode.STOPPED, "stopped at checkpoint-4", "run the same command again"),
        ("budget_exhausted", ExitCode.BUDGET_EXHAUSTED, "the token budget ended at checkpoint-4", "larger budget"),
    ],
)
def test_an_end_at_a_checkpoint_is_one_fault(rl: Run, status: Any, code: ExitCode, found: str, fix: str) -> None:
    rl.prepare()
    end = after_ranks(
        rl.launch_manifest(), [RankOutcome(status=status, optimizer_step=4, checkpoint="checkpoint-4")] * 2
    )
    (fault,) = end.faults
    assert (end.exit_code, fault.exit_code, fault.file, fault.found) == (code, code, str(rl.folder), found)
    assert fix in fault.fix
    answer = json_answer(end.faults, code=end.exit_code, run=str(rl.folder))
    assert validate(answer, "faults", gate="test", file="answer") == []


def test_ranks_that_failed_are_named_by_message(tmp_path: Path) -> None:
    outcomes = [failed("lost rank 1"), failed("out of memory"), failed("lost rank 1"), failed()]
    faults = end_faults(tmp_path, ExitCode.INTERNAL, outcomes)
    expected = ["rank 0, 2: lost rank 1", "rank 1: out of memory", "rank 3: failed, without a message"]
    assert [fault.found for fault in faults] == expected
    assert [fault.file for fault in faults] == [str(tmp_path / "logs" / f"rank-{rank}.log") for rank in (0, 1, 3)]


def test_a_rank_that_refuses_keeps_its_own_faults(tmp_path: Path) -> None:
    fault = Fault(gate="resume-audit", file="f", found="unequal", expected="equal", fix="do not use this run")
    outcomes = [
        failed("unequal", faults=(fault,)),
        failed("could not continue without rank 0"),
        failed(faults=(fault,)),
    ]
    assert end_faults(tmp_path, ExitCode.CONTRACT, outcomes) == (fault,)


@pytest.mark.parametrize(
    ("code", "advice"), [(ExitCode.INTERNAL, "report this as a defect"), (ExitCode.IO, "fix what it names, then run")]
)
def test_an_error_that_has_no_name_is_to_be_reported(tmp_path: Path, code: ExitCode, advice: str) -> None:
    (fault,) = end_faults(tmp_path, code, [failed("KeyError: 'x'")])
    assert advice in fault.fix


def test_a_stop_before_the_first_checkpoint_leads_to_the_beginning(tmp_path: Path) -> None:
    (fault,) = end_faults(tmp_path, ExitCode.STOPPED, [RankOutcome(status="stopped", optimizer_step=0)])
    assert fault.found == "stopped before the first checkpoint"
    assert fault.fix == "run the same command again: it starts from the beginning"


def test_a_complete_run_has_no_faults(rl: Run) -> None:
    rl.prepare()
    rl.sample()
    end = after_ranks(rl.launch_manifest(), rl.completed(rl.reports(rl.save_adapter())))
    assert (end.exit_code, end.faults) == (ExitCode.DONE, ())


def test_the_end_record_holds_what_each_rank_needed(rl: Run) -> None:
    rl.prepare()
    outcomes = [
        failed("out of memory", exit_code=70, peak_memory_bytes=7, peak_reserved_bytes=9, device_seconds=1.5),
        failed(),
    ]
    after_ranks(rl.launch_manifest(), outcomes)
    last = read_events(FolderTree(rl.folder))[0][-1]
    assert (last.kind, last.data) == ("exit", {"launch_id": "launch-1", "exit_code": 70})
    common = {"status": "failed", "optimizer_step": 4, "checkpoint": None}
    assert json.loads((rl.folder / "launches/launch-1.end.json").read_text()) == {
        "schema_version": 1,
        "launch_id": "launch-1",
        "start_sha256": sha256_file(rl.folder / "launches/launch-1.json"),
        "exit_code": 70,
        "ranks": [
            {
                "rank": 0,
                **common,
                "message": "out of memory",
                "peak_memory_bytes": 7,
                "peak_reserved_bytes": 9,
                "device_seconds": 1.5,
                "gpu": None,
                "phases": None,
            },
            {
                "rank": 1,
                **common,
                "message": None,
                "peak_memory_bytes": None,
                "peak_reserved_bytes": None,
                "device_seconds": None,
                "gpu": None,
                "phases": None,
            },
        ],
        "faults": [],
    }


def test_an_end_that_cannot_be_recorded_is_a_fault_of_its_own(
    rl: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rl.prepare()
    rl.sample()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lifecycle, "append_event", fail)
    stopped = after_ranks(rl.launch_manifest(), [failed("out of memory")] * 2)
    assert [fault.found.partition(":")[0] for fault in stopped.faults] == [
        "rank 0, 1",
        "the end of this launch could not be recorded",
    ]
    set_status(rl.folder, "running")
    end = after_ranks(rl.launch_manifest(), rl.completed(rl.reports(rl.save_adapter())))
    assert end.exit_code == ExitCode.IO
    (fault,) = end.faults
    assert fault.found == "the end of this launch could not be recorded: [Errno 28] No space left on device"
    assert (fault.file, fault.exit_code) == (str(rl.folder), ExitCode.IO)
    assert fault.found in capsys.readouterr().err
