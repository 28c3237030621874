"""The phases of a smoke run, with a stand-in for the command that each of them runs."""

from __future__ import annotations

import base64
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.experiment import smoke_run
from explicit_learning.experiment.child_command import ask_child
from explicit_learning.launch.signals import StopRequest
from explicit_learning.rundir.layout import SMOKE_BOUNDARY
from explicit_learning.rundir.run_lock import hold_run
from tests.support.finished_run import plan_document
from tests.support.plans import plan_with
from tests.support.run_directory_table import undocumented_files
from tests.support.smoke_run import SMOKE as SMOKE_SIZE
from tests.support.smoke_run import complete_smoke_run, uninterrupted_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.finished_run import Run

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
    assert refusal.faults[0].expected == "exit code 0"


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


def third_phase(
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
    plan: Path,
    *,
    code: int = 0,
    change: Callable[[Path], None] | None = None,
    nodes: dict[str, str] | None = None,
) -> tuple[smoke_run.SmokeRun, list[list[str]]]:
    """Run `el smoke` on a complete smoke run; its third phase leaves the files of a run, which may be changed."""
    commands = []

    def ask_child(arguments: list[str], _stop: StopRequest) -> tuple[int, tuple[Fault, ...]]:
        commands.append(arguments)
        folder = run.folder / "uninterrupted"
        assert not folder.exists() or [path.name for path in folder.iterdir()] == [".lock"]
        if code == ExitCode.DONE:
            uninterrupted_run(run)
        if change is not None:
            change(folder)
        return code, ()

    monkeypatch.setattr(smoke_run, "ask_child", ask_child)
    done = smoke_run.run_smoke(plan, run.folder, node_flags=nodes or {}, stop=StopRequest(), count_steps=never)
    return done, commands


@pytest.fixture(params=["strict", "seeded"])
def complete(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Run, Path]:
    """A complete smoke run in its grade of determinism, and its plan's file."""
    run = complete_smoke_run(tmp_path / "run", plan_document(**SMOKE_SIZE, determinism=request.param))
    plan = tmp_path / "plan.json"
    plan.write_bytes(run.plan_bytes)
    return run, plan


def grow(folder: Path) -> None:
    """Let an uninterrupted run have another loss in step 6."""
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace("0.16666666666666666", "0.25"))


def test_equal_outputs_are_recorded_and_the_uninterrupted_run_is_removed(
    monkeypatch: pytest.MonkeyPatch, complete: tuple[Run, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, plan = complete
    left = run.folder / "uninterrupted" / "checkpoint-5"
    left.mkdir(parents=True)  # of a third phase that was interrupted: it would be resumed
    done, commands = third_phase(monkeypatch, run, plan)
    assert commands == [["run", str(plan), "--out", str(run.folder / "uninterrupted")]]
    assert (done.comparison, done.outputs_equal) == (run.folder / "smoke-output-comparison.json", True)
    assert json.loads((run.folder / "smoke-output-comparison.json").read_text())["equal"] is True
    assert not (run.folder / "uninterrupted").exists()
    assert undocumented_files(run.folder) == []
    assert "completions, metrics and final adapter of 6 steps equal those of an uninterrupted run" in (
        capsys.readouterr().err
    )
    with pytest.raises(Refusal, match="already complete") as caught:
        third_phase(monkeypatch, run, plan)
    assert caught.value.exit_code == ExitCode.OUTPUT


def test_other_outputs_end_with_70_under_strict_and_with_a_warning_under_seeded(
    monkeypatch: pytest.MonkeyPatch, complete: tuple[Run, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, plan = complete
    first = "step 6: loss in metrics.jsonl is 0.16666666666666666"
    if run.plan.determinism == "strict":
        for again in (False, True):
            with pytest.raises(Refusal, match=first) as caught:
                third_phase(monkeypatch, run, plan, change=grow)
            assert caught.value.exit_code == ExitCode.INTERNAL, again
    else:
        done, _ = third_phase(monkeypatch, run, plan, change=grow)
        assert done.outputs_equal is False
        error = capsys.readouterr().err
        assert first in error
        assert "where that run has 0.25. Determinism seeded does not promise that they are equal" in error
    recorded = json.loads((run.folder / "smoke-output-comparison.json").read_text())
    assert (recorded["equal"], recorded["first_difference"]["step"]) == (False, 6)
    assert (run.folder / "uninterrupted" / "metrics.jsonl").is_file()
    assert undocumented_files(run.folder) == []


def test_the_statement_covers_the_comparison_and_the_same_command_writes_it_after_a_kill(
    monkeypatch: pytest.MonkeyPatch, complete: tuple[Run, Path]
) -> None:
    run, plan = complete
    statement = run.folder / "provenance/run.intoto.json"
    assert not statement.exists()
    with monkeypatch.context() as patched:
        patched.setattr(smoke_run, "write_statement", killed)
        with pytest.raises(KeyboardInterrupt):
            third_phase(patched, run, plan)
    assert (run.folder / "smoke-output-comparison.json").exists()
    assert not statement.exists()
    done, commands = third_phase(monkeypatch, run, plan)
    assert (commands, done.outputs_equal) == ([], True)
    value = json.loads(base64.b64decode(json.loads(statement.read_bytes())["payload"]))
    assert "smoke-output-comparison.json" in {subject["name"] for subject in value["subject"]}


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("code", [75, 139])
def test_a_third_phase_that_does_not_reach_its_end_compares_nothing(
    monkeypatch: pytest.MonkeyPatch, complete: tuple[Run, Path], code: int
) -> None:
    run, plan = complete
    with pytest.raises(Refusal, match=f"phase 3 ended with exit code {code}") as caught:
        third_phase(monkeypatch, run, plan, code=code)
    assert caught.value.exit_code == (75 if code == 75 else 70)
    assert ("it begins this phase again" in caught.value.faults[0].fix) == (code == 75)
    assert not (run.folder / "smoke-output-comparison.json").exists()


def test_only_node_0_compares(monkeypatch: pytest.MonkeyPatch, complete: tuple[Run, Path]) -> None:
    run, plan = complete
    done, [command] = third_phase(monkeypatch, run, plan, nodes=NODES)
    assert command[-1] == "night.3"
    assert (done.comparison, done.outputs_equal) == (None, None)
    assert (run.folder / "uninterrupted").is_dir()


def test_a_third_phase_in_progress_is_not_emptied(monkeypatch: pytest.MonkeyPatch, complete: tuple[Run, Path]) -> None:
    run, plan = complete
    held = run.folder / "uninterrupted"
    with hold_run(held):
        (held / "metrics.jsonl").write_text("")
        with pytest.raises(Refusal, match="is running this run") as caught:
            third_phase(monkeypatch, run, plan)
    assert caught.value.exit_code == ExitCode.OUTPUT
    assert (held / "metrics.jsonl").exists()


def test_a_stop_signal_between_two_phases(monkeypatch: pytest.MonkeyPatch, plan: Path) -> None:
    run, stop = plan.parent / "run", StopRequest()

    def ask_child(_arguments: list[str], _stop: StopRequest) -> tuple[int, tuple[Fault, ...]]:
        reach_boundary(run)
        stop.note(signal.SIGTERM, None)
        return 75, ()

    monkeypatch.setattr(smoke_run, "ask_child", ask_child)
    with pytest.raises(Refusal, match="a stop signal before phase 2") as caught:
        smoke_run.run_smoke(plan, run, node_flags={}, stop=stop, count_steps=never)
    assert caught.value.exit_code == ExitCode.STOPPED
