"""What a watched run is said to do, from its files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.cli import main
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import ROOT
from explicit_learning.rundir.events import append_event
from explicit_learning.watch.page import duration_text, line_of, what_happens
from explicit_learning.watch.state import RunWatcher
from tests.support.compared_arms import arm_run, begun
from tests.support.finished_run import STEPS

if TYPE_CHECKING:
    from pathlib import Path

NOW = 2_000_000_000.0


def log_rank(run: Path, pid: int) -> None:
    (run / "logs").mkdir(exist_ok=True)
    line = f"=== launch {'a' * 32} \u00b7 rank 0 of 1 \u00b7 pid {pid} \u00b7 2026-01-01T00:00:00Z\n"
    (run / "logs" / "rank-0.log").write_text(line)


def test_a_finished_run_has_ended_and_its_numbers_are_those_of_its_files(tmp_path: Path) -> None:
    run = arm_run(tmp_path / "run", "answer_grpo")
    state = RunWatcher(run).poll(now=NOW)
    assert state is not None
    marker = json.loads((run / "training-complete.json").read_text())["counts"]
    assert (state.status, state.has_ended, what_happens(state)) == ("completed", True, "completed")
    assert (state.step, state.steps, state.checkpoint) == (STEPS, STEPS, STEPS)
    assert (state.tokens, state.budget) == (marker["sampled_tokens"], marker["sampled_token_ceiling"])
    assert sum(rank.completions or 0 for rank in state.ranks) == marker["completions"]
    assert state.seconds_left is None


def test_rows_are_counted_as_they_are_written_and_half_lines_are_left(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", "answer_grpo", 0).folder
    ledger = run / "accounting" / "rank-0" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    for checkpoint in run.glob("checkpoint-*"):
        checkpoint.rename(tmp_path / checkpoint.name)  # its frontier is where reading begins
    ledger.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    watcher = RunWatcher(run)
    first = watcher.poll(now=NOW)
    ledger.write_bytes(b"".join(lines))
    second = watcher.poll(now=NOW + 1)
    assert first is not None
    assert second is not None
    assert first.ranks[0].completions == 2
    assert second.ranks[0].completions == len(lines) - 1
    assert second.ranks[0].tokens == sum(json.loads(line)["token_count"] for line in lines[1:])


def test_pace_and_time_left_follow_from_the_steps_that_are_seen(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", "answer_grpo", 0).folder
    metrics = run / "metrics.jsonl"
    watcher = RunWatcher(run)
    metrics.write_text('{"loss":1,"step":1}\n')
    first = watcher.poll(now=NOW)
    metrics.write_text('{"loss":1,"step":1}\n{"loss":0.5,"reward":0.25,"step":2}\n')
    second = watcher.poll(now=NOW + 4)
    assert first is not None
    assert second is not None
    assert first.seconds_per_step is None
    assert second.seconds_per_step == 4.0
    assert second.seconds_left == 4.0 * (STEPS - 2)
    assert "reward 0.25" in line_of(second)


def test_a_rank_that_runs_here_has_memory_and_another_process_with_its_number_has_not(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", "answer_grpo", 0).folder
    append_event(run, "launch", {})
    words = [sys.executable, "-c", "print(flush=True); input()", "explicit_learning.training"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs, and so has all of its memory
        log_rank(run, process.pid)
        running = RunWatcher(run).poll(now=NOW)
        assert process.stdin is not None
        process.stdin.close()
    log_rank(run, os.getpid())
    other = RunWatcher(run).poll(now=NOW)
    assert running is not None
    assert other is not None
    assert (running.is_running, running.ranks[0].pid) == (True, process.pid)
    assert (running.ranks[0].resident_bytes or 0) > 1_000_000
    assert (other.is_running, other.ranks[0].resident_bytes) == (False, None)


def test_a_launch_that_ended_says_how_and_what_continues_it(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", "answer_grpo", 0).folder
    append_event(run, "launch", {})
    append_event(run, "exit", {"exit_code": 75})
    state = RunWatcher(run).poll(now=NOW)
    assert state is not None
    assert state.has_ended
    assert what_happens(state) == "not running: ended with exit code 75; the same el run command continues it"
    append_event(run, "launch", {})
    again = RunWatcher(run).poll(now=NOW)
    assert again is not None
    assert (again.exit_code, again.has_ended, again.launches) == (None, False, state.launches + 1)


def test_a_folder_that_is_not_there_yet_is_waited_for_and_another_is_refused(tmp_path: Path) -> None:
    assert RunWatcher(tmp_path / "later").poll(now=NOW) is None
    (tmp_path / "empty").mkdir()
    assert RunWatcher(tmp_path / "empty").poll(now=NOW) is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(Refusal, match=r"a folder without plan\.json"):
        RunWatcher(tmp_path / "other").poll(now=NOW)
    with pytest.raises(Refusal, match="a run directory"):
        RunWatcher(tmp_path / "other" / "notes.txt")


def test_the_command_ends_with_the_run_and_prints_lines_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = arm_run(tmp_path / "run", "answer_grpo")
    assert main(["watch", str(run)]) == ExitCode.DONE
    assert capsys.readouterr().out.startswith(f"run: step {STEPS}/{STEPS}, completed, ")
    assert main(["watch", str(run), "--once"]) == ExitCode.DONE
    assert "completed" in capsys.readouterr().out
    assert main(["watch", str(run), "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["watched"]["step"] == STEPS


@pytest.mark.parametrize("interval", ["0", "-1", "soon", "nan", "4000"])
def test_an_interval_that_makes_no_sense_is_refused(
    tmp_path: Path, interval: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(tmp_path), "--interval", interval]) == ExitCode.USAGE
    assert "is not a number of seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 s"), (90_061, "1 d 1 h")]
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_terminal_gets_a_page_and_ctrl_c_ends_it_with_0(tmp_path: Path) -> None:
    import pty
    import select
    import time

    run = begun(tmp_path / "run", "answer_grpo", 0).folder
    append_event(run, "launch", {})
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["COLUMNS"] = "40"
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "entrypoint.py", "watch", str(run), "--interval", "0.2"])  # noqa: S606
    shown, interrupted, end = b"", False, time.monotonic() + 60
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            shown += os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if b"launches" in shown and not interrupted:
            os.write(terminal, b"\x03")
            interrupted = True
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"Traceback" not in shown
    assert shown.rstrip().endswith(b"\x1b[?25h"), "the cursor is shown again"
