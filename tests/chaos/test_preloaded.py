"""The fork server gives the other tests what fresh processes would: the same runs, and the same ends."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support import preloaded
from tests.support.chaos.comparing import compare
from tests.support.chaos.launching import Launch, is_alive, wait_until_gone
from tests.support.chaos.strikes import Strike, launched_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.chaos.worlds import ChaosWorld

pytestmark = pytest.mark.chaos


def test_a_run_of_forked_processes_is_bit_for_bit_one_of_fresh_processes(
    world: ChaosWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = world.reference("intervention_grpo", 2)
    monkeypatch.setenv(preloaded.FRESH_VARIABLE, "1")
    run = tmp_path / "run"
    with Launch.of(world.plan("intervention_grpo", 2, 2), run) as launch:
        assert launch.wait() == 0, launch.text()
    assert not compare(run, forked)


def test_forked_ranks_are_children_of_their_launcher_and_die_with_it(world: ChaosWorld, tmp_path: Path) -> None:
    plan, steps = world.plan("answer_grpo", 2, 1), world.steps("answer_grpo", 2)
    with launched_until(Strike(point="mid-append", way="launcher"), plan, tmp_path / "run", steps=steps) as (launch, _):
        ranks, family = launch.ranks(), launch.family()
        assert len(ranks) == 2
        assert len(family) == 3, "the launcher and two ranks: threads decode images"
        assert [os.getpgid(pid) for pid in ranks] == ranks
        assert os.getpgid(launch.process.pid) == launch.process.pid
        launch.process.kill()
        assert launch.wait() == -signal.SIGKILL
        assert wait_until_gone(family, 10) == []


def test_a_forked_command_has_its_own_streams_environment_and_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "sys.stdout.reconfigure(errors='backslashreplace')\n"
        "print(sys.argv[1:], os.environ['OWN'], os.getcwd(), 'torch' in sys.modules, os.listdir('/proc/self/fd'))\n"
        "sys.exit('words')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OWN", "value")
        done = preloaded.run([str(script), "one", "two"], cwd=tmp_path)
    # The fourth descriptor is the folder that is being listed.
    assert done.stdout == f"['one', 'two'] value {tmp_path} True ['0', '1', '2', '3']\n"
    assert (done.returncode, done.stderr) == (1, "words\n")


def test_what_is_read_at_the_start_cannot_be_another_value(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    done = preloaded.run(["script.py"], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "2"})
    assert done.returncode == 1
    assert "['OMP_NUM_THREADS'] must be ['1'], as at this one's start" in done.stderr


def test_a_forked_command_is_waited_for_and_killed_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time; print('ready', flush=True); time.sleep(600)")
    with preloaded.start(["script.py"], cwd=tmp_path, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.poll() is None
        assert is_alive(process.pid)
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM
        assert process.poll() == -signal.SIGTERM
