"""A run directory from nothing to its end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.completion.marker import last_values
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file, snapshot
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import to_json
from explicit_learning.rundir.checkpoint_files import checkpoint_files
from explicit_learning.rundir.completion_marker import Compute, Memory, read_marker
from explicit_learning.rundir.events import read_events
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.run_manifest import read_run_manifest
from tests.support.finished_run import Run, row
from tests.support.lifecycle import end_of, finish, kinds, status, stopped


def test_a_fresh_run(rl: Run) -> None:
    preparation = rl.prepare()
    assert (preparation.action, preparation.checkpoint) == ("fresh", None)
    assert (rl.folder / "plan.json").read_bytes() == rl.plan_bytes
    manifest = read_run_manifest(rl.folder)
    assert manifest.status == "running"
    assert manifest.frozen.plan_sha256 == sha256_file(rl.folder / "plan.json")
    assert preparation.run_manifest_sha256 == manifest.run_manifest_sha256
    assert kinds(rl) == ["gates", "launch"]
    assert read_events(FolderTree(rl.folder))[0][1].data == {
        "launch_id": "launch-1",
        "action": "fresh",
        "checkpoint": None,
    }


def test_an_rl_run_completes(rl: Run) -> None:
    rl.prepare()
    rl.checkpoint(3, rl.sample())
    assert finish(rl) == ExitCode.DONE
    manifest, marker = read_run_manifest(rl.folder), read_marker(rl.folder)
    assert (manifest.status, manifest.trained) == ("completed", True)
    assert manifest.completion is not None
    assert manifest.completion.completion_marker_sha256 == sha256_file(rl.folder / "training-complete.json")
    assert (marker.status, marker.trained) == ("completed", True)
    assert to_json(marker.counts) == {
        "optimizer_steps": 3,
        "records": 12,
        "records_left_out": None,
        "sft_loss_tokens": None,
        "sft_loss_token_ceiling": None,
        "sampled_tokens": 132,
        "sampled_token_ceiling": 300,
        "completions": 24,
        "unique_prompt_groups": 12,
        "zero_variance_groups": 0,
        "malformed": 0,
        "malformed_by_rank": [0, 0],
        "truncated": 0,
        "truncated_by_rank": [0, 0],
        "discarded_completions": 0,
        "discarded_tokens": 0,
    }
    for entry in marker.accounting:
        for frontier in (entry.ledger, entry.trace):
            path = rl.folder / frontier.file
            assert (frontier.digest, frontier.offset) == (sha256_file(path), path.stat().st_size)
            assert (frontier.rows, frontier.tokens) == (12, 66)
    assert marker.adapter.files == snapshot(rl.folder / "final-adapter")
    assert set(marker.adapter.files) == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    (checkpoint,) = marker.checkpoints
    assert checkpoint.mark_sha256 == sha256_file(rl.folder / "checkpoint-3" / "complete.json")
    assert checkpoint.files.keys() == checkpoint_files(rl.plan)
    assert marker.identities.final_adapter_tensors_sha256 == marker.adapter.tensors_sha256
    tensors = {"lora_A": {"shape": [2, 3], "dtype": "float32"}}
    assert to_json(marker.parameters) == {
        "trainable": 6,
        "tensors": tensors,
        "sha256": sha256_json(tensors),
        "modules": {"language": 0, "vision": 0, "merger": 0, "other": 1},
    }
    assert [(each.checkpoint, each.from_step, each.to_step) for each in marker.launches.records] == [(None, 0, 3)]
    assert marker.launches.measured == 1
    assert marker.memory == Memory(peak_bytes_by_rank=(1000, 1000), peak_reserved_bytes_by_rank=(None, None))
    assert marker.compute == Compute(
        forwards=40, sampling_forwards=36, scored_tokens=480, device_seconds=3.0, runtime_seconds=1.5
    )
    assert marker.metrics == last_values(marker.log_history)
    assert (marker.metrics["step"], marker.metrics["loss"]) == (3, 0.25)
    assert marker.zero_gradient_steps == (2,)
    assert kinds(rl) == ["gates", "launch", "exit"]


def test_malformed_and_truncated_completions_are_counted_by_rank(rl: Run) -> None:
    def change(rank: int, pairs: list[Any]) -> list[Any]:
        broken = {"valid": False, "reason": "no_block", "total": -1.0}
        cut = broken | {"terminated": False, "reason": "truncated_completion"}
        # In each step: a malformed completion on rank 0; a truncated and a malformed one on rank 1.
        changes = [broken, {}, {}, {}] if rank == 0 else [{}, cut, broken, {}]
        return [(entry, row(entry, 0, **changed)) for (entry, _), changed in zip(pairs, changes, strict=True)]

    rl.prepare()
    rl.sample(change=change)
    assert finish(rl) == ExitCode.DONE
    counts = read_marker(rl.folder).counts
    assert (counts.malformed, counts.malformed_by_rank) == (9, (3, 6))
    assert (counts.truncated, counts.truncated_by_rank) == (3, (0, 3))
    card = (rl.folder / "final-adapter" / "README.md").read_text()
    assert "| malformed | 9 |\n| malformed_by_rank | 3, 6 |" in card


@pytest.mark.parametrize("unchanged", [True, False])
def test_an_adapter_that_the_run_left_as_it_was_is_told(
    rl: Run, unchanged: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rl.prepare()
    rl.checkpoint(3, rl.sample())
    digest = rl.save_adapter()
    initial = digest if unchanged else "2" * 64
    reports = rl.reports(digest, initial_adapter_tensors_sha256=initial)
    assert after_ranks(rl.launch_manifest(), rl.completed(reports)).exit_code == ExitCode.DONE
    assert read_marker(rl.folder).adapter.unchanged is unchanged
    told = "the final adapter equals the initial one: this run trained nothing"
    assert (told in capsys.readouterr().err) is unchanged
    assert (told in (rl.folder / "final-adapter" / "README.md").read_text()) is unchanged


def test_an_sft_run_completes_with_nulls_where_nothing_was_sampled(sft: Run) -> None:
    sft.prepare()
    sft.checkpoint(3)
    assert finish(sft) == ExitCode.DONE
    marker = read_marker(sft.folder)
    counts = {name: value for name, value in to_json(marker.counts).items() if value is not None}
    expected = {
        "optimizer_steps": 3,
        "records": 24,
        "records_left_out": 7,
        "sft_loss_tokens": 480,
        "sft_loss_token_ceiling": 500,
    }
    assert counts == expected
    assert (marker.accounting, marker.reward, marker.objective) == ((), None, None)
    assert (marker.compute.forwards, marker.compute.sampling_forwards) == (6, None)


def test_a_log_that_was_removed_or_damaged_keeps_no_finished_run_from_its_marker(rl: Run) -> None:
    rl.prepare()
    rl.checkpoint(3, rl.sample())
    (rl.folder / "events.jsonl").write_text("[]\n{")
    assert finish(rl) == ExitCode.DONE
    assert read_marker(rl.folder).launches.measured == 1


def test_a_completed_run_is_refused(rl: Run) -> None:
    rl.prepare()
    rl.sample()
    assert finish(rl) == ExitCode.DONE
    before = snapshot(rl.folder)
    with pytest.raises(Refusal, match="already complete") as refusal:
        rl.prepare()
    assert refusal.value.exit_code == ExitCode.OUTPUT
    assert snapshot(rl.folder) == before


def test_a_broken_rule_leaves_no_marker(rl: Run, capsys: pytest.CaptureFixture[str]) -> None:
    rl.prepare()
    rl.sample(range(2))
    assert finish(rl) == ExitCode.INTERNAL
    assert not (rl.folder / "training-complete.json").exists()
    assert status(rl) == "failed"
    end = end_of(rl)
    assert end.exit_code == 70
    found = [fault["found"] for fault in end.faults]
    assert "16 completions in the ledgers" in found
    assert "16 completions in the ledgers" in capsys.readouterr().err
    again = rl.prepare()
    assert again.action == "fresh"
    assert sorted(path.name for path in (rl.folder / "set-aside").iterdir()) == ["final-adapter.0001"]


@pytest.mark.parametrize("missing", ["report", "adapter", "ledger"])
def test_what_is_missing_at_the_end_is_a_failure(rl: Run, missing: str) -> None:
    rl.prepare()
    rl.sample()
    outcomes = rl.completed(rl.reports(rl.save_adapter()))
    if missing == "report":
        outcomes[1] = RankOutcome(status="completed", optimizer_step=3)
    elif missing == "adapter":
        shutil.rmtree(rl.folder / "final-adapter")
    else:
        (rl.folder / "accounting/rank-1/ledger.jsonl").unlink()
    end = after_ranks(rl.launch_manifest(), outcomes)
    found = {"report": "no report of ranks [1], which completed the run"}.get(missing, "no such file")
    assert [fault.found for fault in end.faults] == [found]
    assert end.exit_code == (ExitCode.CONTRACT if missing == "ledger" else ExitCode.INTERNAL)
    assert status(rl) == "failed"
    assert not (rl.folder / "training-complete.json").exists()


def test_a_manifest_that_changed_under_the_run_is_a_failure(rl: Run) -> None:
    rl.prepare()
    rl.sample()
    manifest = rl.launch_manifest()
    changed = type(manifest)(
        **{name: getattr(manifest, name) for name in manifest.__slots__} | {"run_manifest_sha256": "0" * 64}
    )
    assert after_ranks(changed, rl.completed(rl.reports(rl.save_adapter()))).exit_code == ExitCode.CONTRACT
    assert status(rl) == "failed"


def test_a_defect_after_the_ranks_is_recorded_as_the_end_of_the_run(rl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("frontier")

    rl.prepare()
    rl.sample()
    monkeypatch.setattr("explicit_learning.completion.finished_run.recount_rank", broken)
    end = after_ranks(rl.launch_manifest(), rl.completed(rl.reports(rl.save_adapter())))
    (fault,) = end.faults
    assert (end.exit_code, fault.file) == (ExitCode.INTERNAL, str(rl.folder))
    assert fault.found == "internal error after the ranks had ended: KeyError: 'frontier'"
    assert str(rl.folder / "logs") in fault.fix
    assert status(rl) == "failed"
    assert (end_of(rl).exit_code, end_of(rl).faults) == (70, (fault.to_json(),))


def test_slots_that_changed_during_the_run_are_a_failure(rl: Run) -> None:
    rl.prepare()
    rl.sample()
    manifest = rl.launch_manifest()
    path = Path(manifest.paths.dataset)
    path.write_bytes(path.read_bytes().replace(b'"base_id":"b-s0.r0"', b'"base_id":"other"'))
    end = after_ranks(manifest, rl.completed(rl.reports(rl.save_adapter())))
    (fault,) = end.faults
    assert (end.exit_code, fault.file, fault.pointer) == (ExitCode.CONTRACT, str(path), "/data/slot_manifest_sha256")
    assert fault.expected == rl.plan.data.slot_manifest_sha256
    assert status(rl) == "failed"


@pytest.mark.parametrize("damage", ["changed", "removed"])
def test_a_plan_that_changed_during_the_run_is_a_failure(rl: Run, damage: str) -> None:
    rl.prepare()
    rl.sample()
    path = rl.folder / "plan.json"
    path.unlink()
    if damage == "changed":
        path.write_bytes(rl.plan_bytes + b"\n")
    end = after_ranks(rl.launch_manifest(), rl.completed(rl.reports(rl.save_adapter())))
    (fault,) = end.faults
    assert (end.exit_code, fault.file) == (ExitCode.CONTRACT, str(path))
    assert fault.found.startswith("SHA-256 " if damage == "changed" else "no such file")
    assert status(rl) == "failed"
    assert not (rl.folder / "training-complete.json").exists()


@pytest.mark.parametrize(
    ("outcomes", "code", "expected"),
    [
        ([stopped(1), stopped(1)], ExitCode.STOPPED, "stopped"),
        (
            [RankOutcome(status="budget_exhausted", optimizer_step=2)] * 2,
            ExitCode.BUDGET_EXHAUSTED,
            "budget_exhausted",
        ),
        ([RankOutcome(status="failed", optimizer_step=None)] * 2, ExitCode.INTERNAL, "failed"),
        ([stopped(1), RankOutcome(status="failed", optimizer_step=1, exit_code=74)], ExitCode.IO, "failed"),
        ([stopped(1), RankOutcome(status="completed", optimizer_step=3)], ExitCode.INTERNAL, "failed"),
    ],
)
def test_other_ends(rl: Run, outcomes: list[RankOutcome], code: ExitCode, expected: str) -> None:
    rl.prepare()
    assert after_ranks(rl.launch_manifest(), outcomes).exit_code == code
    assert status(rl) == expected
    assert read_events(FolderTree(rl.folder))[0][-1].data["exit_code"] == code


def test_a_run_whose_budget_ended_is_refused(rl: Run) -> None:
    rl.prepare()
    after_ranks(rl.launch_manifest(), [RankOutcome(status="budget_exhausted", optimizer_step=2)] * 2)
    with pytest.raises(Refusal, match="token budget") as refusal:
        rl.prepare()
    assert refusal.value.exit_code == ExitCode.BUDGET_EXHAUSTED
