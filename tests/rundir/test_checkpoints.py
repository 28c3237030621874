"""Checkpoints are complete or absent, belong to one run, and the last complete one is never removed."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir import checkpoint_mark
from explicit_learning.rundir.checkpoint_files import checkpoint_files
from explicit_learning.rundir.checkpoint_mark import (
    CheckpointMark,
    MarkedFile,
    read_mark,
    seal_checkpoint,
    verify_checkpoint,
    write_rank_frontiers,
)
from explicit_learning.rundir.checkpoints import (
    Rotation,
    complete_checkpoints,
    newest_complete,
    rotate_checkpoints,
    set_aside_incomplete,
)
from explicit_learning.rundir.events import read_events
from explicit_learning.rundir.owner import ownership_faults
from tests.support.finished_run import Run, plan_document, sft_document

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def rl(tmp_path: Path) -> Run:
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    return run


@pytest.fixture
def sft(tmp_path: Path) -> Run:
    run = Run.of(tmp_path / "run", sft_document())
    run.prepare()
    return run


def verify(run: Run, folder: Path, plan: Plan | None = None) -> CheckpointMark:
    assert run.preparation is not None
    return verify_checkpoint(folder, plan or run.plan, run_manifest_sha256=run.preparation.run_manifest_sha256)


def faults(run: Run, folder: Path, plan: Plan | None = None) -> dict[str, str]:
    with pytest.raises(Refusal) as refusal:
        verify(run, folder, plan)
    assert refusal.value.exit_code == ExitCode.CONTRACT
    name = str(folder)
    return {
        str(fault.pointer or (fault.file or "").removeprefix(name).lstrip("/")): fault.found
        for fault in refusal.value.faults
    }


def test_a_sealed_checkpoint_lists_every_file_and_every_frontier(rl: Run) -> None:
    frontiers = rl.sample(range(1))
    folder = rl.checkpoint(1, frontiers)
    mark = read_mark(folder)
    assert (mark.step, mark.run_id, mark.world_size) == (1, "answer_grpo-seed0", 2)
    assert list(mark.frontiers) == frontiers
    assert mark.files == {
        path.relative_to(folder).as_posix(): MarkedFile(bytes=path.stat().st_size, sha256=sha256_file(path))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "complete.json"
    }
    assert mark.files.keys() == checkpoint_files(rl.plan)
    assert verify(rl, folder) == mark


def test_an_sft_checkpoint_has_no_frontiers(sft: Run) -> None:
    folder = sft.checkpoint(1)
    assert verify(sft, folder).frontiers == ()


def test_a_checkpoint_without_a_ranks_frontiers_is_not_sealed(rl: Run) -> None:
    folder = rl.checkpoint(1, rl.sample(range(1))[:1], seal=False)
    with pytest.raises(Refusal, match=r"rank-1\.json"):
        seal_checkpoint(folder, rl.plan, step=1, run_manifest_sha256="0" * 64)
    assert newest_complete(rl.folder) is None


def test_a_checkpoint_is_sealed_with_exactly_the_files_that_training_writes(rl: Run) -> None:
    folder = rl.checkpoint(1, rl.sample(range(1)), seal=False)
    (folder / "optimizer.pt").unlink()
    (folder / "training_args.bin").write_bytes(b"x")
    with pytest.raises(Refusal) as caught:
        seal_checkpoint(folder, rl.plan, step=1, run_manifest_sha256="0" * 64)
    assert caught.value.exit_code == ExitCode.INTERNAL
    assert [(fault.file, fault.found) for fault in caught.value.faults] == [
        (str(folder / "optimizer.pt"), "no such file"),
        (str(folder / "training_args.bin"), "a file"),
    ]
    assert newest_complete(rl.folder) is None


FRONTIERS = {"accounting/rank-0.json", "accounting/rank-1.json"}


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, {f"accounting/rank-{rank}.json" for rank in (0, 1)}),
        (
            {"arm": "papo", "objective__beta": 0.01},
            {
                "accounting/rank-0.json",
                "accounting/rank-1.json",
                "ref/adapter_config.json",
                "ref/adapter_model.safetensors",
            },
        ),
        (None, set()),
    ],
    ids=["no reference", "reference", "sft"],
)
def test_the_files_of_a_checkpoint_follow_from_the_plan(changes: dict[str, Any] | None, more: set[str]) -> None:
    plan = from_json(Plan, sft_document() if changes is None else plan_document(**changes))
    own = {"counters-rank-{}.json", "state-digests-rank-{}.json", "random-streams-rank-{}.pt"}
    shared = {"adapter_config.json", "adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"}
    assert checkpoint_files(plan) == shared | more | {name.format(rank) for name in own for rank in (0, 1)}


def test_a_mark_that_was_changed_together_with_the_files_lacks_one_or_lists_another(rl: Run) -> None:
    folder = rl.checkpoint(1, rl.sample(range(1)))
    mark = json.loads((folder / "complete.json").read_bytes())
    (folder / "counters-rank-1.json").rename(folder / "notes.txt")
    mark["files"]["notes.txt"] = mark["files"].pop("counters-rank-1.json")
    (folder / "complete.json").write_text(json.dumps(mark))
    assert faults(rl, folder) == {"/files/counters-rank-1.json": "not listed", "/files/notes.txt": "listed"}


def test_ledger_and_trace_must_stand_at_the_same_row(rl: Run) -> None:
    first, second = rl.sample(range(1))
    folder = rl.checkpoint(1, [first], seal=False)
    write_rank_frontiers(folder, dataclasses.replace(second, trace=dataclasses.replace(second.trace, rows=3)))
    with pytest.raises(Refusal, match=r"ledger at row 4 with \d+ tokens, trace at row 3") as caught:
        seal_checkpoint(folder, rl.plan, step=1, run_manifest_sha256="0" * 64)
    assert caught.value.exit_code == ExitCode.INTERNAL
    assert newest_complete(rl.folder) is None


def test_half_written_checkpoints_are_set_aside(sft: Run) -> None:
    sft.checkpoint(2)
    sft.checkpoint(10)
    sft.checkpoint(11, seal=False)
    sft.checkpoint(1, seal=False)
    assert newest_complete(sft.folder) == "checkpoint-10"
    assert set_aside_incomplete(sft.folder) == ["set-aside/checkpoint-1.0001", "set-aside/checkpoint-11.0001"]
    assert set_aside_incomplete(sft.folder) == []
    sft.checkpoint(11, seal=False)
    assert set_aside_incomplete(sft.folder) == ["set-aside/checkpoint-11.0002"]
    assert (sft.folder / "set-aside/checkpoint-11.0001/trainer_state.json").exists()
    assert complete_checkpoints(sft.folder) == ["checkpoint-2", "checkpoint-10"]


def test_a_kill_at_any_file_leaves_an_incomplete_checkpoint(sft: Run) -> None:
    whole = sft.checkpoint(2)
    files = sorted(path for path in whole.rglob("*") if path.is_file() and path.name != "complete.json")
    for kept in range(len(files) + 1):
        folder = sft.folder / "checkpoint-3"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path in files[:kept]:
            shutil.copy(path, folder)
        assert newest_complete(sft.folder) == "checkpoint-2"


def test_a_failure_while_flushing_leaves_no_mark(sft: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sft.checkpoint(1)

    def fail(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_mark, "fsync_file", fail)
    with pytest.raises(OSError, match="No space"):
        seal_checkpoint(folder, sft.plan, step=1, run_manifest_sha256="0" * 64)
    assert newest_complete(sft.folder) is None


def test_rotation_keeps_the_newest_and_the_protected(sft: Run) -> None:
    for step in (1, 2, 3, 5, 10):
        sft.checkpoint(step)
    sft.checkpoint(11, seal=False)
    rotation = rotate_checkpoints(sft.folder, keep=2, protected=["checkpoint-2"])
    assert rotation.removed == ["checkpoint-1", "checkpoint-3"]
    assert complete_checkpoints(sft.folder) == ["checkpoint-2", "checkpoint-5", "checkpoint-10"]
    assert (sft.folder / "checkpoint-11").exists()
    assert rotate_checkpoints(sft.folder, keep=1).removed == ["checkpoint-2", "checkpoint-5"]
    assert rotate_checkpoints(sft.folder, keep=1).removed == []
    assert newest_complete(sft.folder) == "checkpoint-10"
    assert not list(sft.folder.glob(".writing-*"))
    with pytest.raises(ValueError, match="never removed"):
        rotate_checkpoints(sft.folder, keep=0)


def test_what_cannot_be_removed_is_noted_and_tried_again(sft: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, where a file that is still open keeps its folder from being removed."""
    for step in (1, 2, 3):
        sft.checkpoint(step)
    rmtree = shutil.rmtree

    def busy(_: Path) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    monkeypatch.setattr(shutil, "rmtree", busy)
    rotation = rotate_checkpoints(sft.folder, keep=2)
    (left,) = sft.folder.glob(".writing-*")
    assert (rotation.removed, rotation.not_removed) == (["checkpoint-1"], [f"{left.name}: Directory not empty"])
    assert complete_checkpoints(sft.folder) == ["checkpoint-2", "checkpoint-3"]
    assert sft.prepare().checkpoint == "checkpoint-3"
    event = next(event for event in reversed(read_events(FolderTree(sft.folder))[0]) if event.kind == "gates")
    assert event.data["not_removed"] == rotation.not_removed
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert rotate_checkpoints(sft.folder, keep=2) == Rotation(removed=[], not_removed=[])
    assert not list(sft.folder.glob(".writing-*"))


def test_a_half_written_successor_does_not_let_the_last_complete_one_go(sft: Run) -> None:
    sft.checkpoint(1)
    sft.checkpoint(2, seal=False)
    assert rotate_checkpoints(sft.folder, keep=1).removed == []
    assert newest_complete(sft.folder) == "checkpoint-1"


@pytest.mark.parametrize("file", ["trainer_state.json", "adapter_model.safetensors", "accounting/rank-1.json"])
def test_a_missing_truncated_or_changed_file_is_named(rl: Run, file: str) -> None:
    folder = rl.checkpoint(1, rl.sample(range(1)))
    data = (folder / file).read_bytes()
    (folder / file).unlink()
    assert faults(rl, folder) == {file: "no such file"}
    (folder / file).write_bytes(data[:-1])
    assert faults(rl, folder) == {file: f"{len(data) - 1:,} bytes"}
    (folder / file).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert faults(rl, folder)[file].startswith("SHA-256 ")
    (folder / file).write_bytes(data)
    (folder / "training_args.bin").write_bytes(b"cos\nsystem\n")
    assert faults(rl, folder) == {"training_args.bin": "a file that the mark does not list"}


@pytest.mark.parametrize(
    "name", [".nfs000000000123", ".DS_Store", "._optimizer.pt", ".fuse_hidden01", "Thumbs.db", "@eaDir/optimizer.pt"]
)
def test_what_a_file_system_leaves_is_no_file_of_a_checkpoint(rl: Run, name: str) -> None:
    frontiers = rl.sample(range(1))
    folder = rl.checkpoint(1, frontiers, seal=False)
    for place in (folder, folder / "accounting"):
        (place / name).parent.mkdir(exist_ok=True)
    (folder / "accounting" / name).write_text("x")
    assert rl.preparation is not None
    seal_checkpoint(folder, rl.plan, step=1, run_manifest_sha256=rl.preparation.run_manifest_sha256)
    (folder / name).write_text("y")
    assert name not in " ".join(verify(rl, folder).files)
    (folder / "accounting" / name).unlink()
    verify(rl, folder)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"hardware__world_size": 1}, ["/frozen_config_sha256", "/world_size"]),
        ({"seed": 1}, ["/frozen_config_sha256"]),
        ({"run_id": "other"}, ["/frozen_config_sha256", "/run_id"]),
    ],
)
def test_a_checkpoint_of_another_plan_is_refused(rl: Run, changes: dict[str, Any], pointer: list[str]) -> None:
    folder = rl.checkpoint(1, rl.sample(range(1)))
    assert sorted(faults(rl, folder, from_json(Plan, plan_document(**changes)))) == pointer


def test_a_renamed_checkpoint_is_refused(sft: Run) -> None:
    folder = sft.checkpoint(1).rename(sft.folder / "checkpoint-2")
    assert faults(sft, folder) == {"/step": "1"}


@pytest.mark.parametrize("name", ["checkpoint-1", "checkpoint-9"])
def test_a_renamed_checkpoint_stops_the_run_and_is_never_removed(sft: Run, name: str) -> None:
    """Under a lower number it would be removed as the oldest, under a higher one resumed as the newest."""
    sft.checkpoint(2)
    sft.checkpoint(3).rename(sft.folder / name)
    with pytest.raises(Refusal) as refusal:
        sft.prepare()
    (fault,) = refusal.value.faults
    assert (fault.file, fault.found) == (str(sft.folder / name), "a checkpoint whose mark says checkpoint-3")
    assert (fault.fix, fault.exit_code) == ("rename the folder back to checkpoint-3", 65)
    assert rotate_checkpoints(sft.folder, keep=1).removed == []
    (sft.folder / name).rename(sft.folder / "checkpoint-3")
    assert sft.prepare().checkpoint == "checkpoint-3"


def test_checkpoints_that_exchanged_their_names_are_not_to_be_moved_away(sft: Run) -> None:
    sft.checkpoint(2).rename(sft.folder / "other")
    sft.checkpoint(3).rename(sft.folder / "checkpoint-2")
    (sft.folder / "other").rename(sft.folder / "checkpoint-3")
    fixes = [fault.fix for fault in ownership_faults(sft.folder, sft.plan.frozen_config_sha256)]
    assert fixes == [
        "rename the folder back to checkpoint-3, once the folder that has this name now is checkpoint-2 again",
        "rename the folder back to checkpoint-2, once the folder that has this name now is checkpoint-3 again",
    ]


def test_a_copied_checkpoint_is_to_be_moved_away(sft: Run) -> None:
    shutil.copytree(sft.checkpoint(2), sft.folder / "checkpoint-7")
    (fault,) = ownership_faults(sft.folder, sft.plan.frozen_config_sha256)
    assert fault.fix == "move the folder out of the run directory: checkpoint-2 is there, too"


def test_a_mark_that_breaks_its_schema_is_refused(sft: Run) -> None:
    folder = sft.checkpoint(1)
    document = json.loads((folder / "complete.json").read_text())
    (folder / "complete.json").write_text(json.dumps(document | {"step": 0}))
    assert faults(sft, folder) == {"/step": "0"}
