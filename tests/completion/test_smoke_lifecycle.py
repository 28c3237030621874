"""The phases of a smoke run, and what each must prove."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.tree import FolderTree
from explicit_learning.rundir.completion_marker import read_marker
from explicit_learning.rundir.events import read_events
from explicit_learning.rundir.run_manifest import read_run_manifest
from explicit_learning.rundir.smoke_boundary import prove_boundary
from tests.support.finished_run import Run, plan_document, sft_document
from tests.support.lifecycle import end_of, exit_faults, finish, status
from tests.support.machines import MACHINE
from tests.support.smoke_run import (
    SMOKE,
    SMOKE_REPORT,
    audit,
    complete_smoke_run,
    end_launch,
    smoke_run,
    uninterrupted_run,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("document", [plan_document(**SMOKE), sft_document(**SMOKE)], ids=["rl", "sft"])
def test_a_smoke_run_never_becomes_trained(tmp_path: Path, document: dict[str, Any]) -> None:
    run = smoke_run(tmp_path / "run", document)
    audit(run)
    report = {"optimizer_steps": 6} if run.is_sft else SMOKE_REPORT
    assert finish(run, **report) == ExitCode.DONE
    assert read_run_manifest(run.folder).status == "completed"
    assert read_run_manifest(run.folder).trained is False
    marker = read_marker(run.folder)
    assert marker.trained is False
    probe = marker.resume_probe
    assert probe is not None
    assert probe.boundary_sha256 == sha256_file(run.folder / "smoke-resume-boundary.json")
    (entry,) = probe.audits
    assert (entry.checkpoint, entry.passed) == ("checkpoint-5", True)
    assert entry.sha256 == sha256_file(run.folder / entry.file)


def test_a_smoke_run_without_its_proof_is_not_complete(tmp_path: Path) -> None:
    run = smoke_run(tmp_path / "run", plan_document(**SMOKE))
    assert finish(run, **SMOKE_REPORT) == ExitCode.INTERNAL
    assert status(run) == "failed"
    assert exit_faults(run) == {"/resume_audits": "0 resume audits of the last launch, 0 of them passed"}


@pytest.mark.parametrize("changes", [{"nonce": "0"}, {"optimizer": "1" * 64}])
def test_a_smoke_run_whose_audit_failed_is_not_complete(tmp_path: Path, changes: dict[str, str]) -> None:
    run = smoke_run(tmp_path / "run", plan_document(**SMOKE))
    audit(run, **changes)
    assert finish(run, **SMOKE_REPORT) == ExitCode.INTERNAL
    assert exit_faults(run) == {"/resume_audits": "1 resume audits of the last launch, 0 of them passed"}


def test_a_smoke_run_in_one_process_is_not_complete(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", plan_document(**SMOKE))
    run.prepare()
    run.sample(range(6))
    assert finish(run, **SMOKE_REPORT) == ExitCode.INTERNAL
    assert exit_faults(run)["/resume_checkpoint"] == "the last launch started at step 0"


def test_the_second_phase_of_a_smoke_run_always_starts_at_the_boundary(tmp_path: Path) -> None:
    run = smoke_run(tmp_path / "run", sft_document(**SMOKE))
    run.checkpoint(6)
    assert run.prepare().checkpoint == "checkpoint-5"
    assert (run.folder / "set-aside" / "checkpoint-6.0001" / "complete.json").is_file()
    what = [event.data["what"] for event in read_events(FolderTree(run.folder))[0] if event.kind == "set-aside"]
    assert what == ["checkpoint beyond the smoke boundary"]


def test_an_uninterrupted_phase_ends_without_completing_a_run(tmp_path: Path) -> None:
    other = uninterrupted_run(complete_smoke_run(tmp_path / "run", plan_document(**SMOKE)))
    manifest = read_run_manifest(other.folder)
    assert (manifest.status, manifest.trained, manifest.completion) == ("stopped", False, None)
    assert not (other.folder / "training-complete.json").exists()
    assert end_of(other).exit_code == ExitCode.DONE


def test_an_uninterrupted_phase_keeps_all_other_completion_rules(tmp_path: Path) -> None:
    compared = complete_smoke_run(tmp_path / "run", plan_document(**SMOKE))
    other = Run(folder=compared.folder / "uninterrupted", plan=compared.plan, plan_bytes=compared.plan_bytes)
    other.prepare()
    other.sample(range(5))
    assert end_launch(other, replace(other.launch_manifest(), uninterrupted=True)).exit_code == ExitCode.INTERNAL
    assert exit_faults(other).keys() == {"/completions", "/sampled_tokens"}
    assert status(other) == "failed"


def test_an_uninterrupted_phase_that_was_resumed_proves_nothing(tmp_path: Path) -> None:
    compared = complete_smoke_run(tmp_path / "run", sft_document(**SMOKE))
    other = Run(folder=compared.folder / "uninterrupted", plan=compared.plan, plan_bytes=compared.plan_bytes)
    other.prepare()
    other.checkpoint(3)
    assert other.prepare().checkpoint == "checkpoint-3"
    assert end_launch(other, replace(other.launch_manifest(), uninterrupted=True)).exit_code == ExitCode.INTERNAL
    assert exit_faults(other) == {"/resume_checkpoint": "the last launch resumed checkpoint-3"}


def test_an_uninterrupted_phase_runs_where_the_smoke_run_ran(tmp_path: Path) -> None:
    compared = complete_smoke_run(tmp_path / "run", sft_document(**SMOKE))
    other = Run(folder=compared.folder / "uninterrupted", plan=compared.plan, plan_bytes=compared.plan_bytes)
    cpu = MACHINE.platform.hardware["cpu"] | {"model": "Model Two"}
    platform = replace(MACHINE.platform, hardware=MACHINE.platform.hardware | {"cpu": cpu})
    other.machine = replace(MACHINE, platform=platform)
    with pytest.raises(Refusal, match="Model Two") as caught:
        other.prepare()
    assert caught.value.exit_code == ExitCode.HARDWARE
    assert other.prepare(accept_changes=True).action == "fresh"


def test_a_boundary_of_another_run_proves_nothing(tmp_path: Path) -> None:
    run = smoke_run(tmp_path / "run", sft_document(**SMOKE))
    path = run.folder / "smoke-resume-boundary.json"
    path.write_text(path.read_text().replace("checkpoint-5", "checkpoint-4"))
    with pytest.raises(Refusal, match="/checkpoint"):
        prove_boundary(run.launch_manifest(), [])
    path.unlink()
    with pytest.raises(Refusal, match=r"smoke-resume-boundary\.json"):
        prove_boundary(run.launch_manifest(), [])
