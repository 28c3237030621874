"""The real launcher and real ranks, as processes: what becomes of each way to end."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import Refusal
from explicit_learning.launch.signals import RANK_SAME_SIGNAL_SECONDS
from explicit_learning.rundir.layout import LOCK
from explicit_learning.rundir.run_lock import hold_run
from tests.launch.conftest import Launch, ends_within

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Launched = Callable[..., AbstractContextManager[Launch]]

pytestmark = pytest.mark.slow

STOP_SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]


def test_both_ranks_complete(launched: Launched) -> None:
    with launched("complete", PYTHONHASHSEED="5", EXPLICIT_SIGNING_KEY="nobody but the launcher reads it") as launch:
        assert launch.wait() == 0
    outcome, first, second = launch.outcomes()[0], launch.seen(0), launch.seen(1)
    assert (outcome["status"], outcome["optimizer_step"], second["sum"]) == ("completed", 7, 3)
    assert first["variables"] == {
        "MALLOC_MMAP_THRESHOLD_": "4000000000",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONHASHSEED": "0",
        "PYTHONSAFEPATH": "1",
        "EXPLICIT_SIGNING_KEY": None,
    }
    assert json.loads((launch.run / "signing-key.json").read_bytes()) == "nobody but the launcher reads it"
    assert first["own_session"]
    assert not [name for name in first["files"] if name.endswith(LOCK)], "a rank holds the run's lock"
    for rank in (0, 1):
        header, *lines = launch.log(rank).splitlines()
        assert header.startswith(f"=== launch launch-1 · rank {rank} of 2 · pid ")
        assert lines == [f"a line of rank {rank}", "printed by Python", "written by native code"]
    assert launch.console() == "a line of rank 0\n"
    assert list(launch.temporary.iterdir()) == [], "the launch's private folder is left behind"


def test_a_defect_after_the_ranks_ends_with_70_and_its_traceback_in_the_log(launched: Launched) -> None:
    """A `ValueError`, which a launcher without the run's lock raises too, and answers with 64."""
    with launched("leaves_no_outcome", world_size=1, DEFECT="1", EXPLICIT_LAUNCH_JSON="1") as launch:
        assert launch.wait() == 70
    *lines, answer = launch.console().splitlines()
    assert "  found:    internal error: ValueError: a defect after the ranks" in lines
    assert (json.loads(answer)["exit_code"], json.loads(answer)["ok"]) == (70, False)
    log = (launch.run / "logs" / "launcher.log").read_text()
    assert "Traceback" in log
    assert "ValueError: a defect after the ranks" in log
    assert list(launch.temporary.iterdir()) == []


def test_a_failed_outcome_ends_the_run_with_its_code(launched: Launched) -> None:
    with launched("one_fails") as launch:
        assert launch.wait() == 65
    first, second = launch.outcomes()
    assert (second["message"], second["exit_code"]) == ("the ledger is another run's", 65)
    assert (first["status"], first["message"], first["exit_code"]) == (
        "failed",
        "could not continue without rank 1",
        65,
    )
    assert launch.console() == ("rank 0: could not continue without rank 1\nrank 1: the ledger is another run's\n"), (
        "torch's own tables belong in the log"
    )
    assert "exitcode: 65" in (launch.run / "logs" / "launcher.log").read_text()


def test_an_exception_on_a_rank_is_named_and_its_peer_points_to_it(launched: Launched) -> None:
    with launched("one_raises") as launch:
        assert launch.wait() == 74
    first, second = launch.outcomes()
    assert second["message"].startswith(
        "disk full: [Errno 28] No space left on device: 'checkpoint-5'; free some space"
    )
    assert (first["message"], first["exit_code"]) == ("could not continue without rank 1", 74)
    assert "Traceback" in launch.log(1)
    assert "Traceback" not in launch.console()


def test_a_full_disk_is_named_even_if_the_log_is_on_it(launched: Launched) -> None:
    with launched("nowhere_to_log", world_size=1) as launch:
        assert launch.wait() == 74
    assert launch.outcomes()[0]["message"].startswith("disk full: [Errno 28] No space left on device: 'ledger.jsonl'")


def test_a_killed_rank_is_named_with_its_log(launched: Launched) -> None:
    with launched("both_wait") as launch:
        launch.pid_of(0)
        os.kill(launch.pid_of(1), signal.SIGKILL)
        killed = time.monotonic()
        assert launch.wait() == 70
    assert time.monotonic() - killed < 60
    message = launch.outcomes()[1]["message"]
    assert message.startswith("rank 1 was killed by SIGKILL (the kernel's out-of-memory killer does that")
    assert f"its log is {launch.run / 'logs' / 'rank-1.log'}, which ends:" in message
    assert message.endswith("\n    the last line of a rank")
    assert launch.outcomes()[0]["message"] == "could not continue without rank 1"


def test_a_crash_is_traced_in_the_log(launched: Launched) -> None:
    with launched("both_wait", world_size=1) as launch:
        os.kill(launch.pid_of(0), signal.SIGSEGV)
        assert launch.wait() == 70
    assert launch.outcomes()[0]["message"].startswith("rank 0 was killed by SIGSEGV (native code crashed")
    assert "Fatal Python error: Segmentation fault" in launch.log(0)


def test_a_rank_that_leaves_no_outcome_fails_the_run(launched: Launched) -> None:
    with launched("leaves_no_outcome") as launch:
        assert launch.wait() == 70
    assert launch.outcomes()[1]["message"].startswith("rank 1 ended with exit code 0 and left no outcome; its log is ")


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_to_the_launcher_stops_all_ranks_together(launched: Launched, number: signal.Signals) -> None:
    with launched("until_signalled") as launch:
        pids = [launch.pid_of(0), launch.pid_of(1)]
        launch.process.send_signal(number)
        assert launch.wait() == 75
    for rank, outcome in enumerate(launch.outcomes()):
        assert (outcome["status"], outcome["checkpoint"]) == ("stopped", "checkpoint-1")
        assert launch.seen(rank)["signals"] == [number.name]
    assert all(ends_within(pid, 0.1) for pid in pids)
    assert launch.console() == f"{number.name}: stopping at the next checkpoint (send it again to end at once)\n"


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_to_one_rank_stops_all_ranks_together(launched: Launched, number: signal.Signals) -> None:
    with launched("until_agreed") as launch:
        launch.pid_of(0)
        os.kill(launch.pid_of(1), number)
        assert launch.wait() == 75
    first, second = launch.outcomes()
    assert first["optimizer_step"] == second["optimizer_step"]
    assert (launch.seen(0)["signals"], launch.seen(1)["signals"]) == ([], [number.name])


def test_a_signal_during_the_start_is_not_lost(launched: Launched) -> None:
    with launched("until_signalled") as launch:
        time.sleep(0.2)  # Python starts, torch is not imported yet: the default action would end the launcher here
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 75
    assert [outcome["status"] for outcome in launch.outcomes()] == ["stopped", "stopped"]


def test_copies_of_a_signal_to_the_whole_group_count_once(launched: Launched) -> None:
    with launched("until_signalled") as launch:
        ranks = [launch.pid_of(0), launch.pid_of(1)]
        for _ in range(2):
            os.killpg(launch.process.pid, signal.SIGINT)
            for pid in ranks:
                os.kill(pid, signal.SIGINT)
            time.sleep(0.3)
        assert launch.wait() == 75
    assert [outcome["status"] for outcome in launch.outcomes()] == ["stopped", "stopped"]
    assert launch.console().count("SIGINT") == 1


@pytest.mark.parametrize(("checkpoint", "code"), [({}, 70), ({"CHECKPOINT": "1"}, 75)])
def test_a_later_second_signal_ends_at_once(launched: Launched, checkpoint: dict[str, str], code: int) -> None:
    with launched("never_stops", **checkpoint) as launch:
        pids = [launch.pid_of(0), launch.pid_of(1)]
        pids += [int((launch.run / f"child-{rank}").read_text()) for rank in (0, 1)]
        launch.process.send_signal(signal.SIGINT)
        time.sleep(2.5)
        assert launch.process.poll() is None
        launch.process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        assert launch.wait() == code
    assert time.monotonic() - asked < 20  # far below the launcher's patience
    assert all(ends_within(pid, 1) for pid in pids)
    first = launch.outcomes()[0]
    assert "a second signal (SIGTERM) came" in first["message"]
    assert (first["status"], first["checkpoint"], first["optimizer_step"]) == (
        ("stopped", "checkpoint-5", 5) if checkpoint else ("failed", None, None)
    )


def test_a_later_second_signal_to_one_rank_ends_the_run(launched: Launched) -> None:
    with launched("never_stops", CHECKPOINT="1") as launch:
        pids = [launch.pid_of(0), launch.pid_of(1)]
        os.kill(pids[1], signal.SIGUSR2)
        time.sleep(1)
        os.kill(pids[1], signal.SIGUSR2)  # a copy, such as the launcher's
        assert not ends_within(pids[1], RANK_SAME_SIGNAL_SECONDS)
        os.kill(pids[1], signal.SIGTERM)
        asked = time.monotonic()
        assert launch.wait() == 75
    assert time.monotonic() - asked < 60
    assert all(ends_within(pid, 1) for pid in pids)
    assert [(outcome["status"], outcome["message"]) for outcome in launch.outcomes()] == [
        ("stopped", "killed by the launcher: rank 1 got a second stop signal")
    ] * 2
    assert "ending at once: SIGTERM came 11 s after the first signal" in launch.log(1)


def test_ranks_that_hang_after_a_stop_are_ended(launched: Launched) -> None:
    with launched("never_stops", world_size=1, PATIENCE="1") as launch:
        launch.pid_of(0)
        launch.process.send_signal(signal.SIGUSR1)
        assert launch.wait() == 70
    assert "no checkpoint was reached within 1 s of SIGUSR1" in launch.outcomes()[0]["message"]


def test_nothing_outlives_a_killed_launcher(launched: Launched) -> None:
    with launched("both_wait") as launch:
        pids = [launch.pid_of(0), launch.pid_of(1)]
        with pytest.raises(Refusal, match="is running this run"), hold_run(launch.run):
            pass
        launch.process.kill()
        launch.process.wait()
        assert all(ends_within(pid, 2) for pid in pids)
    with hold_run(launch.run):
        pass


def test_a_hang_up_stops_like_a_signal(launched: Launched) -> None:
    with launched("until_signalled", world_size=1) as launch:
        launch.pid_of(0)
        launch.process.send_signal(signal.SIGHUP)
        assert launch.wait() == 75
    assert launch.seen(0)["signals"] == ["SIGTERM"]


def test_a_suspended_launcher_continues(launched: Launched) -> None:
    with launched("until_signalled") as launch:
        pids = [launch.pid_of(0), launch.pid_of(1)]
        launch.process.send_signal(signal.SIGSTOP)
        time.sleep(25)  # longer than the rendezvous waits for a heartbeat, which would restart the ranks
        launch.process.send_signal(signal.SIGCONT)
        time.sleep(2)
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 75
    assert [launch.seen(rank)["pid"] for rank in (0, 1)] == pids


def test_a_run_does_not_end_because_stderr_is_closed(launched: Launched) -> None:
    with launched("complete", stderr_is_read=False) as launch:
        assert launch.wait() == 0
    with launched("until_signalled", world_size=1, stderr_is_read=False) as launch:
        launch.pid_of(0)
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 75


def test_a_second_launch_appends_to_the_logs(launched: Launched) -> None:
    for _ in range(2):
        with launched("leaves_no_outcome", world_size=1) as launch:
            assert launch.wait() == 0
    assert launch.log(0).count("=== launch") == 2
