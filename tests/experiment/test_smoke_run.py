"""The two phases of a smoke run, with a stand-in for the command that each of them runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.experiment import smoke_run
from explicit_learning.experiment.child_command import ask_child
from explicit_learning.launch.signals import StopRequest
from explicit_learning.rundir.layout import SMOKE_BOUNDARY
from tests.support.plans import plan_with

if TYPE_CHECKING:
    from pathlib import Path

SMOKE = plan_with({"/run_mode": "smoke", "/optimisation/max_steps": 8, "/optimisation/save_interval": 5})
NODES = {"nnodes": "2", "node_rank": "1", "rdzv_endpoint": "127.0.0.1:29400", "rdzv_id": "night"}


def reach_boundary(run: Path) -> None:
    (run / "checkpoint-5").mkdir(parents=True)
    (run / "checkpoint-5" / "complete.json").write_text("{}")
    (run / SMOKE_BOUNDARY).write_text("{}")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(SMOKE))
    return path


def never(*_: Any) -> Any:
    raise AssertionError("a smoke plan is run as it is")


def refused(
    monkeypatch: pytest.MonkeyPatch,
    plan: Path,
    codes: list[int],
    *,
    reaches_boundary: bool,
    faults: tuple[Fault, ...] = (),
) -> tuple[Refusal, list[list[str]]]:
    """Run a smoke run whose phases end with these exit codes, and return its refusal and the commands that it ran."""
    run, commands = plan.parent / "run", []

    def ask_child(arguments: list[str], stop: StopRequest) -> tuple[int, tuple[Fault, ...]]:
        assert not stop.requested()
        commands.append(arguments)
        if reaches_boundary and len(commands) == 1:
            reach_boundary(run)
        return codes[len(commands) - 1], faults

    monkeypatch.setattr(smoke_run, "ask_child", ask_child)
    with pytest.raises(Refusal) as caught:
        smoke_run.run_smoke(plan, run, node_flags=NODES, stop=StopRequest(), count_steps=never)
    return caught.value, commands


def test_each_phase_is_a_launch_with_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch, plan: Path) -> None:
    refusal, commands = refused(monkeypatch, plan, [75, 65], reaches_boundary=True)
    assert [command[:4] for command in commands] == [["run", str(plan), "--out", str(plan.parent / "run")]] * 2
    flags = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "127.0.0.1:29400", "--rdzv-id"]
    assert [command[4:] for command in commands] == [[*flags, "night.1"], [*flags, "night.2"]]
    assert refusal.exit_code == ExitCode.CONTRACT
    assert refusal.faults[0].found == "phase 2 ended with exit code 65"


def test_a_phase_1_that_stops_before_the_boundary_is_to_be_run_again(
    monkeypatch: pytest.MonkeyPatch, plan: Path
) -> None:
    refusal, commands = refused(monkeypatch, plan, [75], reaches_boundary=False)
    assert len(commands) == 1
    assert (refusal.exit_code, refusal.faults[0].found) == (ExitCode.STOPPED, "phase 1 ended with exit code 75")
    assert refusal.faults[0].fix.startswith("run the same command again")


def test_a_phase_1_that_is_over_is_not_run_again(monkeypatch: pytest.MonkeyPatch, plan: Path) -> None:
    reach_boundary(plan.parent / "run")
    refusal, commands = refused(monkeypatch, plan, [139], reaches_boundary=False)
    assert len(commands) == 1
    assert (refusal.exit_code, refusal.faults[0].found) == (ExitCode.INTERNAL, "phase 2 ended with exit code 139")


def test_a_phase_that_is_refused_is_answered_with_its_own_faults(monkeypatch: pytest.MonkeyPatch, plan: Path) -> None:
    reach_boundary(plan.parent / "run")
    fault = Fault(
        gate="output",
        found="this run is already complete",
        expected="an unfinished run, or no folder",
        fix="use what is there",
        exit_code=ExitCode.OUTPUT,
    )
    refusal, _ = refused(monkeypatch, plan, [73], reaches_boundary=False, faults=(fault,))
    assert (refusal.exit_code, refusal.faults) == (ExitCode.OUTPUT, (fault,))


def test_the_answer_of_a_command_holds_its_faults(tmp_path: Path) -> None:
    code, (fault,) = ask_child(["check", str(tmp_path / "missing.json")], StopRequest())
    assert (code, fault.exit_code) == (64, ExitCode.USAGE)
    assert (fault.file, fault.found) == (str(tmp_path / "missing.json"), "no such file")
