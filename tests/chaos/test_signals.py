"""Signals to a real run: it stops at a checkpoint, and its result is that of a run without a stop."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from explicit_learning.rundir.checkpoints import complete_checkpoints
from tests.support.chaos.comparing import compare
from tests.support.chaos.launching import Launch, wait_until_gone
from tests.support.chaos.strikes import Strike, launched_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.chaos.worlds import ChaosWorld

pytestmark = pytest.mark.chaos

SAMPLED = Strike(point="mid-append", way="tree")  # only its point is used


def usr1_to_a_rank(launch: Launch) -> None:
    os.kill(launch.ranks()[1], signal.SIGUSR1)


def term_to_the_launcher(launch: Launch) -> None:
    launch.process.send_signal(signal.SIGTERM)


def ctrl_c_twice_at_once(launch: Launch) -> None:
    for _ in range(2):
        os.killpg(launch.process.pid, signal.SIGINT)
        time.sleep(0.2)


def term_to_everything(launch: Launch) -> None:
    """A scheduler's way: the launcher and each rank get it."""
    for pid in launch.family():
        os.kill(pid, signal.SIGTERM)


WAYS: tuple[Callable[[Launch], None], ...] = (
    usr1_to_a_rank,
    term_to_the_launcher,
    ctrl_c_twice_at_once,
    term_to_everything,
)


def test_every_signal_leads_to_one_checkpoint_and_the_run_goes_on(world: ChaosWorld, tmp_path: Path) -> None:
    plan, steps, run = world.plan("answer_grpo", 2, 2), world.steps("answer_grpo", 2), tmp_path / "run"
    for number, send in enumerate(WAYS, start=1):
        with launched_until(SAMPLED, plan, run, "--audit", steps=steps) as (launch, reached):
            assert reached, launch.text()
            family = launch.family()
            send(launch)
            assert launch.wait() == 75, launch.text()
            # A signal to a rank is agreed among ranks; the launcher prints nothing until they have stopped.
            lines = 0 if send is usr1_to_a_rank else 1
            assert launch.text().count("stopping at the next checkpoint") == lines
            assert wait_until_gone(family, 5) == []
        rows = (run / "metrics.jsonl").read_text().splitlines()
        assert complete_checkpoints(run)[-1] == f"checkpoint-{len(rows)}"
        assert json.loads((run / "run-manifest.json").read_bytes())["status"] == "stopped"
        run = run.rename(tmp_path / f"moved {number}")  # nothing in a run directory depends on its path
    with Launch.of(plan, run, "--audit") as launch:
        assert launch.wait() == 0, launch.text()
    assert not compare(run, world.reference("answer_grpo", 2))
    audits = [json.loads(path.read_bytes()) for path in (run / "resume-audits").iterdir()]
    assert [audit["passed"] for audit in audits] == [True] * len(WAYS)
    assert all(len(audit["ranks"]) == 2 for audit in audits)
    marker = json.loads((run / "training-complete.json").read_bytes())
    assert len(marker["resume_probe"]["audits"]) == len(WAYS)
    assert marker["counts"]["discarded_completions"] == 0
