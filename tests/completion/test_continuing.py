"""What each interruption of a run leads to when the same command comes again."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from explicit_learning.completion.lifecycle import Preparation, after_ranks
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import snapshot
from explicit_learning.rundir.completion_marker import Compute, Memory, read_marker
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.run_manifest import set_status
from tests.support.finished_run import Run, plan_document
from tests.support.lifecycle import finish, kinds, status, stopped

if TYPE_CHECKING:
    from pathlib import Path


def test_a_killed_run_resumes_and_counts_what_was_lost(rl: Run, tmp_path: Path) -> None:
    rl.prepare()
    saved = rl.sample(range(1))
    rl.checkpoint(1, saved)
    after_ranks(
        rl.launch_manifest(), [stopped(1, peak_memory_bytes=5000, device_seconds=seconds) for seconds in (2.0, 2.5)]
    )
    manifest_sha256 = rl.launch_manifest().run_manifest_sha256
    assert rl.prepare() == Preparation(
        action="resume", checkpoint="checkpoint-1", run_manifest_sha256=manifest_sha256, launch_id="launch-2"
    )
    at = rl.sample(range(1, 2), frontiers=saved)
    rl.checkpoint(2, at, seal=False)
    (rl.folder / ".writing-abc-plan.json").write_text("half")
    (rl.folder / ".writing-removed-checkpoint-0").mkdir()
    (rl.folder / ".writing-removed-checkpoint-0" / ".writing-x").write_text("half")
    (rl.folder / "accounting" / "rank-0" / ".writing-y").write_text("half")
    # Killed here, without an exit event. The same command again:
    assert rl.prepare().checkpoint == "checkpoint-1"
    assert [path.name for path in (rl.folder / "set-aside").iterdir()] == ["checkpoint-2.0001"]
    assert not list(rl.folder.rglob(".writing-*"))
    rl.checkpoint(3, rl.sample(range(1, 3), frontiers=saved))
    assert finish(rl) == ExitCode.DONE
    marker = read_marker(rl.folder)
    assert (marker.counts.discarded_completions, marker.counts.discarded_tokens) == (8, 44)
    assert (marker.counts.completions, marker.counts.sampled_tokens) == (24, 132)
    entries = [(each.checkpoint, each.from_step, each.to_step, each.exit_code) for each in marker.launches.records]
    assert entries == [(None, 0, 1, 75), ("checkpoint-1", 1, 1, None), ("checkpoint-1", 1, 3, None)]
    assert marker.launches.measured == 2
    assert marker.memory.peak_bytes_by_rank == (5000, 5000)
    # Forwards and tokens came back from the checkpoint; times are those of two launches.
    assert marker.compute == Compute(
        forwards=40, sampling_forwards=36, scored_tokens=480, device_seconds=7.5, runtime_seconds=4.0
    )
    straight = Run.of(tmp_path / "straight", plan_document())
    straight.prepare()
    straight.sample()
    for rank in range(2):
        for name in ("ledger.jsonl", "trace.jsonl"):
            file = f"accounting/rank-{rank}/{name}"
            assert (rl.folder / file).read_bytes() == (straight.folder / file).read_bytes()
    before = ["gates", "launch", "exit", "gates", "launch", "gates", "set-aside", "launch"]
    assert kinds(rl) == [*before, *["set-aside"] * 4, "exit"]  # a ledger and a trace of each rank


def test_each_launch_has_the_step_it_began_at_and_the_step_up_to_which_it_is_kept(rl: Run) -> None:
    rl.prepare()
    saved = rl.sample(range(1))
    rl.prepare()  # the first launch was killed before it had a checkpoint
    rl.checkpoint(1, saved)
    after_ranks(rl.launch_manifest(), [stopped(1), RankOutcome(status="failed", optimizer_step=None)])
    rl.prepare()
    saved = rl.sample(range(1, 2), frontiers=saved)
    rl.checkpoint(2, saved)
    after_ranks(rl.launch_manifest(), [stopped(2)] * 2)
    rl.prepare()
    shutil.rmtree(rl.folder / "checkpoint-2")  # it ended in order at step 2, and the next one starts before that
    after_ranks(rl.launch_manifest(), [stopped(2)] * 2)
    rl.prepare()
    rl.checkpoint(3, rl.sample(range(2, 3), frontiers=saved))
    assert finish(rl) == ExitCode.DONE
    records = read_marker(rl.folder).launches.records
    assert [(each.checkpoint, each.from_step, each.to_step, each.exit_code) for each in records] == [
        (None, 0, 0, None),
        (None, 0, 1, 70),
        ("checkpoint-1", 1, 1, 75),
        ("checkpoint-2", 2, 2, 75),
        ("checkpoint-1", 1, 3, None),
    ]


@pytest.mark.parametrize(("first", "expected"), [((5000, 9000), (5000, 9000)), ((500, 100), (1000, 2000))])
def test_memory_is_the_highest_of_all_launches(
    tmp_path: Path, first: tuple[int, int], expected: tuple[int, int]
) -> None:
    run = Run.of(tmp_path / "run", plan_document(hardware__accelerator="cuda"))
    run.prepare()
    saved = run.sample(range(1))
    run.checkpoint(1, saved)
    allocated, reserved = first
    after_ranks(run.launch_manifest(), [stopped(1, peak_memory_bytes=allocated, peak_reserved_bytes=reserved)] * 2)
    run.prepare()
    run.checkpoint(3, run.sample(range(1, 3), frontiers=saved))
    assert finish(run, peak_reserved_bytes=2000) == ExitCode.DONE
    highest, most = expected
    assert read_marker(run.folder).memory == Memory(
        peak_bytes_by_rank=(highest,) * 2, peak_reserved_bytes_by_rank=(most,) * 2
    )


def test_a_crash_between_marker_and_manifest_is_only_finalised(rl: Run) -> None:
    rl.prepare()
    rl.sample()
    before = (rl.folder / "run-manifest.json").read_bytes()
    assert finish(rl) == ExitCode.DONE
    after = (rl.folder / "run-manifest.json").read_bytes()
    (rl.folder / "run-manifest.json").write_bytes(before)
    files = snapshot(rl.folder)
    (rl.folder / ".writing-abc-run-manifest.json").write_bytes(after[:100])  # killed before it got its name
    assert rl.prepare().action == "finalise"
    assert (rl.folder / "run-manifest.json").read_bytes() == after
    assert kinds(rl)[-1] == "finalise"
    changed = {name for name, sha256 in snapshot(rl.folder).items() if files.get(name) != sha256}
    assert changed == {"run-manifest.json", "events.jsonl"}
    with pytest.raises(Refusal, match="already complete"):
        rl.prepare()


def test_a_marker_of_another_run_is_not_finalised(rl: Run) -> None:
    rl.prepare()
    rl.sample()
    before = (rl.folder / "run-manifest.json").read_bytes()
    assert finish(rl) == ExitCode.DONE
    (rl.folder / "run-manifest.json").write_bytes(before)
    marker = json.loads((rl.folder / "training-complete.json").read_text())
    marker["identities"]["run_manifest_sha256"] = "0" * 64
    (rl.folder / "training-complete.json").write_text(json.dumps(marker))
    with pytest.raises(Refusal, match=f"/identities/run_manifest_sha256\n  found:    {'0' * 64}"):
        rl.prepare()


def test_another_plan_is_refused(rl: Run) -> None:
    rl.prepare()
    other = Run.of(rl.folder, plan_document(seed=1))
    with pytest.raises(Refusal, match="another plan") as refusal:
        other.prepare()
    assert refusal.value.exit_code == ExitCode.OUTPUT


def test_the_same_plan_in_another_layout_is_the_same_plan(rl: Run) -> None:
    rl.prepare()
    before = (rl.folder / "plan.json").read_bytes()
    rl.plan_bytes = json.dumps(json.loads(rl.plan_bytes), indent=4).encode()
    assert rl.plan_bytes != before
    assert rl.prepare().action == "fresh"
    assert (rl.folder / "plan.json").read_bytes() == before


@pytest.mark.parametrize("gone", ["plan.json", "run-manifest.json"])
def test_records_without_their_plan_or_manifest_are_refused(rl: Run, gone: str) -> None:
    rl.prepare()
    rl.sample()
    assert finish(rl) == ExitCode.DONE
    (rl.folder / gone).unlink()
    with pytest.raises(Refusal, match="without") as refusal:
        rl.prepare()
    assert refusal.value.exit_code == ExitCode.OUTPUT


def test_a_crash_before_the_manifest_starts_over(rl: Run) -> None:
    rl.folder.mkdir()
    (rl.folder / "plan.json").write_bytes(rl.plan_bytes)
    assert rl.prepare().action == "fresh"


def test_a_damaged_checkpoint_is_refused_by_name(rl: Run) -> None:
    rl.prepare()
    folder = rl.checkpoint(1, rl.sample(range(1)))
    os.truncate(folder / "adapter_model.safetensors", 10)
    with pytest.raises(Refusal) as refusal:
        rl.prepare()
    (fault,) = refusal.value.faults
    assert (fault.file, fault.found) == (str(folder / "adapter_model.safetensors"), "10 bytes")
    assert refusal.value.exit_code == ExitCode.CONTRACT


def test_a_damaged_resume_audit_is_refused_before_the_training(rl: Run) -> None:
    rl.prepare()
    path = rl.folder / "resume-audits" / "checkpoint-1-x.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(Refusal) as refusal:
        rl.prepare()
    (fault,) = refusal.value.faults
    assert (fault.file, fault.exit_code) == (str(path), ExitCode.CONTRACT)
    assert fault.fix.startswith("restore the file from a copy")
    assert kinds(rl) == ["gates", "launch"]


def test_a_damaged_mark_of_a_checkpoint_is_not_to_be_repaired_by_hand(rl: Run) -> None:
    rl.prepare()
    mark = rl.checkpoint(1, rl.sample(range(1))) / "complete.json"
    mark.write_text('{"schema_version": 1, "step": "1"}')
    with pytest.raises(Refusal) as refusal:
        rl.prepare()
    missing, step = refusal.value.faults
    assert missing.found == (
        "6 missing fields: /files, /frontiers, /frozen_config_sha256, /run_id, /run_manifest_sha256, /world_size"
    )
    assert (step.pointer, step.found) == ("/step", '"1"')
    fix = (
        "restore the folder from a copy, or remove it to resume from an older checkpoint; if another version of this "
        "program began the run, continue it with that version"
    )
    assert {(fault.file, fault.fix) for fault in refusal.value.faults} == {(str(mark), fix)}


def test_a_run_that_failed_may_be_tried_again(rl: Run) -> None:
    rl.prepare()
    set_status(rl.folder, "failed")
    assert rl.prepare().action == "fresh"
    assert status(rl) == "running"


def test_a_folder_that_cannot_be_made_is_exit_73(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refusal) as refusal:
        Run.of(tmp_path / "file" / "run", plan_document()).prepare()
    assert refusal.value.exit_code == ExitCode.OUTPUT
