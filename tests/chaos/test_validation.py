"""A run that is killed between a validation and its checkpoint leaves what an unharmed run leaves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.digits.writer import Size, write_dataset
from explicit_learning.files.tree import FolderTree
from explicit_learning.rundir.checkpoints import complete_checkpoints
from explicit_learning.rundir.completion_marker import read_marker
from explicit_learning.rundir.events import read_events
from tests.support.chaos.comparing import compare
from tests.support.chaos.launching import Launch, kill_all, wait_until_gone
from tests.support.plans import write_plan

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.chaos
ATTEMPTS, SECONDS = 5, 300
STEP = 4


def _killed_after_validation(launch: Launch) -> None:
    """Kill a launch and its ranks as soon as its log says that a step was validated."""
    log, deadline = launch.run / "events.jsonl", time.monotonic() + SECONDS
    wanted = f'"optimizer_step":{STEP},'
    while time.monotonic() < deadline:
        lines = log.read_text().splitlines() if log.is_file() else []
        if any('"kind":"validation"' in line and wanted in line for line in lines):
            pids = launch.family()
            kill_all(pids)
            wait_until_gone(pids)
            return
        time.sleep(0.001)
    pytest.fail(f"no validation after step {STEP}: {launch.text()}")


def test_a_kill_between_a_validation_and_its_checkpoint_neither_loses_nor_doubles_a_row(
    tmp_path: Path,
) -> None:
    digits = tmp_path / "data"
    write_dataset(digits, seed=11, size=Size(sft_items=64, slot_groups=6, evaluation_groups=4))
    settings = {
        "validation": {"every_steps": 2, "share": 0.34},
        "optimisation": {"save_interval": 2, "save_total_limit": 1},
    }
    plan = write_plan(tmp_path / "plan.json", "sft_certificate", digits, settings)
    with Launch.of(plan, tmp_path / "whole") as launch:
        assert launch.wait() == 0, launch.text()
    for attempt in range(ATTEMPTS):  # a kill that came after the checkpoint shows nothing
        run = tmp_path / f"killed-{attempt}"
        with Launch.of(plan, run) as launch:
            _killed_after_validation(launch)
        if f"checkpoint-{STEP}" not in complete_checkpoints(run):
            break
    else:
        pytest.fail(f"every one of {ATTEMPTS} kills came after the checkpoint")
    with Launch.of(plan, run) as launch:
        assert launch.wait() == 0, launch.text()
    steps = [event.data["optimizer_step"] for event in read_events(FolderTree(run), "validation")[0]]
    assert steps == [2, STEP, STEP, 6, 8]  # the log of events tells what happened: one step was validated twice
    assert not (difference := compare(run, tmp_path / "whole")), difference
    killed, whole = read_marker(run), read_marker(tmp_path / "whole")
    assert killed.validation == whole.validation is not None
    assert [entry.name for entry in killed.checkpoints] == [entry.name for entry in whole.checkpoints]
    assert killed.compute.validation is not None
    assert whole.compute.validation is not None
    assert killed.compute.validation.sampled_tokens == whole.compute.validation.sampled_tokens
    assert killed.compute.validation.forwards == whole.compute.validation.forwards
