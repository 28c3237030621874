"""Whose folder it is: nobody's, this plan's, another's, or a run that has ended."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.owner import ownership_faults, require_own_folder
from explicit_learning.rundir.run_manifest import set_status
from tests.support.finished_run import Run, plan_document

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault

OURS, THEIRS = "a" * 64, "b" * 64


def write_plan(folder: Path, plan: object = OURS) -> Path:
    (folder / "plan.json").write_text(json.dumps({"frozen_config_sha256": plan}))
    return folder


def fault_of(folder: Path, plan: str | None = OURS) -> Fault:
    (fault,) = ownership_faults(folder, plan)
    assert (fault.gate, fault.file) == ("output", str(folder))
    return fault


@pytest.fixture
def completed(tmp_path: Path) -> tuple[Run, bytes]:
    """Return a completed run, and its manifest as it was before the completion was entered."""
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    run.sample()
    before = (run.folder / "run-manifest.json").read_bytes()
    end = after_ranks(run.launch_manifest(), run.completed(run.reports(run.save_adapter())))
    assert end.exit_code == ExitCode.DONE
    return run, before


def test_no_folder_and_an_empty_one_are_free(tmp_path: Path) -> None:
    assert ownership_faults(tmp_path / "missing", OURS) == []
    for name in (".lock", ".writing-x-plan.json"):
        (tmp_path / name).write_text("")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".DS_Store").write_text("")
    assert ownership_faults(tmp_path, OURS) == []
    assert ownership_faults(tmp_path, None) == []


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    for index in range(7):
        (tmp_path / f"{index}").write_text("")
    fault = fault_of(tmp_path)
    assert fault.exit_code == ExitCode.OUTPUT
    assert fault.found == "it holds files that do not belong to a run: 0, 1, 2, 3, 4"


@pytest.mark.parametrize("plan", [None, 5, [OURS]])
def test_a_plan_without_identity_does_not_belong_to_a_run(plan: object, tmp_path: Path) -> None:
    assert "do not belong to a run: plan.json" in fault_of(write_plan(tmp_path, plan)).found


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "[" * 100_000, "null"])
def test_a_broken_plan_does_not_belong_to_a_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    assert "do not belong to a run: plan.json" in fault_of(tmp_path).found


def test_a_plan_among_unrelated_files_does_not_make_their_folder_a_run(tmp_path: Path) -> None:
    write_plan(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / ".lock").write_text("")
    assert ownership_faults(tmp_path, OURS) == []
    (tmp_path / "thesis.tex").write_text("")
    fault = fault_of(tmp_path)
    assert (fault.exit_code, fault.found) == (
        ExitCode.OUTPUT,
        "it holds files that do not belong to a run: thesis.tex",
    )


def test_a_plan_that_is_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    (fault,) = ownership_faults(tmp_path, OURS)
    assert (fault.file, fault.found, fault.expected) == (str(tmp_path / "plan.json"), "a folder", "the plan's file")
    assert fault.exit_code == ExitCode.OUTPUT


@pytest.mark.parametrize("record", ["checkpoint-2", "accounting", "events.jsonl", "final-adapter", "resume-audits"])
def test_a_run_that_lost_its_manifest_is_not_started_again(record: str, tmp_path: Path) -> None:
    write_plan(tmp_path)
    (tmp_path / record).mkdir()
    fault = fault_of(tmp_path)
    assert (fault.exit_code, fault.found) == (ExitCode.OUTPUT, f"{record} without run-manifest.json")
    assert fault.fix == "restore run-manifest.json from a copy, or choose another folder (--out)"


def test_a_run_of_another_plan_is_refused_whatever_became_of_it(tmp_path: Path) -> None:
    write_plan(tmp_path, THEIRS)
    for name in ("run-manifest.json", "training-complete.json"):
        assert fault_of(tmp_path).found == f"it holds a run of another plan ({THEIRS})"
        assert (
            "to train longer, freeze an RL plan whose initial_adapter is this run's final-adapter"
            in fault_of(tmp_path).fix
        )
        assert fault_of(tmp_path).expected == f"a run of plan {OURS}"
        assert fault_of(tmp_path, None).expected == "an empty folder, or no folder"
        (tmp_path / name).write_text("{}")


def test_an_unfinished_run_of_this_plan_may_go_on(tmp_path: Path) -> None:
    assert ownership_faults(write_plan(tmp_path), OURS) == []
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    for status in ("failed", "running", "stopped"):
        set_status(run.folder, status)
        require_own_folder(run.folder, run.plan.frozen_config_sha256)


def test_a_completed_run_is_refused(completed: tuple[Run, bytes]) -> None:
    run, _ = completed
    fault = fault_of(run.folder, run.plan.frozen_config_sha256)
    assert (fault.exit_code, fault.found) == (ExitCode.OUTPUT, "this run is already complete")
    (run.folder / "training-complete.json").unlink()
    assert fault_of(run.folder, run.plan.frozen_config_sha256).found == "this run is already complete"


def test_a_completion_that_a_crash_kept_out_of_the_manifest_is_left_to_be_entered(completed: tuple[Run, bytes]) -> None:
    run, before = completed
    (run.folder / "run-manifest.json").write_bytes(before)
    assert ownership_faults(run.folder, run.plan.frozen_config_sha256) == []


@pytest.mark.parametrize(
    ("gone", "found"),
    [
        ("plan.json", "run-manifest.json and training-complete.json without the plan.json of a run"),
        (
            "run-manifest.json",
            "accounting, events.jsonl, final-adapter, launches, metrics.jsonl without run-manifest.json",
        ),
    ],
)
def test_records_without_their_plan_or_manifest_are_refused(
    completed: tuple[Run, bytes], gone: str, found: str
) -> None:
    run, _ = completed
    (run.folder / gone).unlink()
    fault = fault_of(run.folder, run.plan.frozen_config_sha256)
    assert (fault.exit_code, fault.found) == (ExitCode.OUTPUT, found)


def test_a_damaged_manifest_is_to_be_restored_and_not_repaired_by_hand(completed: tuple[Run, bytes]) -> None:
    run, _ = completed
    (run.folder / "run-manifest.json").write_text('{"status": "running"}')
    (fault,) = ownership_faults(run.folder, run.plan.frozen_config_sha256)
    assert (fault.file, fault.exit_code) == (str(run.folder / "run-manifest.json"), ExitCode.CONTRACT)
    assert fault.found == (
        "6 missing fields: /completion, /frozen, /last_launch_sha256, /run_manifest_sha256, /schema_version, /trained"
    )
    assert fault.fix == (
        "restore the file from a copy, or start the run again in another folder (--out); if another version of this "
        "program began the run, continue it with that version"
    )


@pytest.mark.parametrize("change", [("answer_grpo", "full_cover"), ('"max_steps":3', '"max_steps":2')])
def test_a_plan_that_was_changed_after_the_first_launch_is_named(change: tuple[str, str], tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    path, before = run.folder / "plan.json", run.plan_bytes
    path.write_text(before.decode().replace(*change))
    (fault,) = ownership_faults(run.folder, run.plan.frozen_config_sha256)
    assert (fault.file, fault.exit_code) == (str(path), ExitCode.CONTRACT)
    assert fault.found == f"SHA-256 {sha256_file(path)}: it was changed after the run's first launch"
    assert fault.expected == f"SHA-256 {hashlib.sha256(before).hexdigest()}, which is frozen in run-manifest.json"
    with pytest.raises(Refusal, match="it was changed after the run's first launch"):
        run.prepare()
    path.write_bytes(before)
    assert run.prepare().action == "fresh"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\x00", "[" * 100_000, "null"])
def test_a_manifest_that_cannot_be_read_is_refused_with_and_without_a_marker(
    completed: tuple[Run, bytes], text: str
) -> None:
    run, _ = completed
    (run.folder / "run-manifest.json").write_text(text)
    for _ in range(2):
        faults = ownership_faults(run.folder, run.plan.frozen_config_sha256)
        assert {fault.file for fault in faults} == {str(run.folder / "run-manifest.json")}
        assert {fault.exit_code for fault in faults} == {ExitCode.CONTRACT}
        (run.folder / "training-complete.json").unlink(missing_ok=True)


def test_a_run_whose_budget_ended_is_refused_with_its_own_code(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    after_ranks(run.launch_manifest(), [RankOutcome(status="budget_exhausted", optimizer_step=2)] * 2)
    with pytest.raises(Refusal, match="token budget of this run has ended") as refusal:
        require_own_folder(run.folder, run.plan.frozen_config_sha256)
    assert refusal.value.exit_code == ExitCode.BUDGET_EXHAUSTED
