"""Which folder holds the uninterrupted phase of a smoke run: its place says so, and a complete run around it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode
from explicit_learning.rundir.output_comparison import compared_run, is_complete_run
from tests.support.finished_run import Run, plan_document
from tests.support.smoke_run import SMOKE, complete_smoke_run, smoke_run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_of_that_name_in_a_complete_smoke_run_of_the_plan(tmp_path: Path) -> None:
    run = complete_smoke_run(tmp_path / "run", plan_document(**SMOKE))
    plan = run.plan.frozen_config_sha256
    assert is_complete_run(run.folder, plan)
    assert compared_run(run.folder / "uninterrupted", plan) == run.folder
    assert compared_run(run.folder / "elsewhere", plan) is None
    assert compared_run(run.folder, plan) is None
    assert not is_complete_run(run.folder, "0" * 64)
    assert compared_run(run.folder / "uninterrupted", "0" * 64) is None


def test_a_smoke_run_at_its_boundary_cannot_be_led_past_it(tmp_path: Path) -> None:
    run = smoke_run(tmp_path / "run", plan_document(**SMOKE))
    assert compared_run(run.folder / "uninterrupted", run.plan.frozen_config_sha256) is None


def test_a_marker_that_the_manifest_does_not_record_is_to_be_finalised_first(tmp_path: Path) -> None:
    run = complete_smoke_run(tmp_path / "run", plan_document(**SMOKE))
    path = run.folder / "run-manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "running", "completion": None}))
    assert compared_run(run.folder / "uninterrupted", run.plan.frozen_config_sha256) is None
    run.prepare()
    assert compared_run(run.folder / "uninterrupted", run.plan.frozen_config_sha256) == run.folder


def test_a_main_run_has_no_uninterrupted_phase(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    run.checkpoint(3, run.sample())
    outcomes = run.completed(run.reports(run.save_adapter()))
    assert after_ranks(run.launch_manifest(), outcomes).exit_code == ExitCode.DONE
    assert is_complete_run(run.folder, run.plan.frozen_config_sha256)
    assert compared_run(run.folder / "uninterrupted", run.plan.frozen_config_sha256) is None
