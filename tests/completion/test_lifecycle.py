"""A run directory from nothing to its end, and what each interruption in between leads to."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.completion.lifecycle import Preparation, after_ranks
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file, snapshot
from explicit_learning.files.typed_json import to_json
from explicit_learning.rundir.completion_marker import Compute, Memory, read_marker
from explicit_learning.rundir.events import read_events
from explicit_learning.rundir.launches import read_launches
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.run_manifest import read_run_manifest, set_status
from explicit_learning.rundir.smoke_boundary import prove_boundary
from tests.support.finished_run import Run, plan_document, row, sft_document
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
    from explicit_learning.rundir.launches import EndRecord


def status(run: Run) -> str:
    return read_run_manifest(run.folder).status


def kinds(run: Run) -> list[str]:
    events, torn = read_events(run.folder)
    assert torn == 0
    return [event.kind for event in events]


def finish(run: Run, **changes: Any) -> ExitCode:
    outcomes = run.completed(run.reports(run.save_adapter(), **changes))
    return after_ranks(run.launch_manifest(), outcomes).exit_code


def stopped(step: int, **measured: Any) -> RankOutcome:
    return RankOutcome(status="stopped", optimizer_step=step, checkpoint=f"checkpoint-{step}", **measured)


def test_a_fresh_run(rl: Run) -> None:
    preparation = rl.prepare()
    assert (preparation.action, preparation.checkpoint) == ("fresh", None)
    assert (rl.folder / "plan.json").read_bytes() == rl.plan_bytes
    manifest = read_run_manifest(rl.folder)
    assert manifest.status == "running"
    assert manifest.frozen.plan_sha256 == sha256_file(rl.folder / "plan.json")
    assert preparation.run_manifest_sha256 == manifest.run_manifest_sha256
    assert kinds(rl) == ["gates", "launch"]
    assert read_events(rl.folder)[0][1].data == {"launch_id": "launch-1", "action": "fresh", "checkpoint": None}


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
    assert checkpoint.files.keys() == {
        "accounting/rank-0.json",
        "accounting/rank-1.json",
        "adapter_model.safetensors",
        "trainer_state.json",
    }
    assert marker.identities.final_adapter_tensors_sha256 == marker.adapter.tensors_sha256
    tensors = {"lora_A": {"shape": [2, 3], "dtype": "float32"}}
    assert to_json(marker.parameters) == {"trainable": 6, "tensors": tensors, "sha256": sha256_json(tensors)}
    assert [(each.checkpoint, each.from_step, each.to_step) for each in marker.launches.records] == [(None, 0, 3)]
    assert marker.launches.measured == 1
    assert marker.memory == Memory(peak_bytes_by_rank=(1000, 1000), peak_reserved_bytes_by_rank=(None, None))
    assert marker.compute == Compute(
        forwards=40, sampling_forwards=132, scored_tokens=480, device_seconds=3.0, runtime_seconds=1.5
    )
    assert marker.metrics == {"step": 2, "loss": 0.25, "reward": None}
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
    assert (marker.compute.forwards, marker.compute.sampling_forwards) == (40, None)


def test_a_log_that_was_removed_or_damaged_keeps_no_finished_run_from_its_marker(rl: Run) -> None:
    rl.prepare()
    rl.checkpoint(3, rl.sample())
    (rl.folder / "events.jsonl").write_text("[]\n{")
    assert finish(rl) == ExitCode.DONE
    assert read_marker(rl.folder).launches.measured == 1


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
    what = [event.data["what"] for event in read_events(run.folder)[0] if event.kind == "set-aside"]
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


def exit_faults(run: Run) -> dict[str, str]:
    return {fault["pointer"]: fault["found"] for fault in end_of(run).faults}


def end_of(run: Run) -> EndRecord:
    """Return the record of the last launch's end."""
    assert read_events(run.folder)[0][-1].kind == "exit"
    end = read_launches(run.folder)[-1].end
    assert end is not None
    return end


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
    assert read_events(rl.folder)[0][-1].data["exit_code"] == code


def test_a_run_whose_budget_ended_is_refused(rl: Run) -> None:
    rl.prepare()
    after_ranks(rl.launch_manifest(), [RankOutcome(status="budget_exhausted", optimizer_step=2)] * 2)
    with pytest.raises(Refusal, match="token budget") as refusal:
        rl.prepare()
    assert refusal.value.exit_code == ExitCode.BUDGET_EXHAUSTED


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
        forwards=40, sampling_forwards=132, scored_tokens=480, device_seconds=7.5, runtime_seconds=4.0
    )
    straight = Run.of(tmp_path / "straight", plan_document())
    straight.prepare()
    straight.sample()
    for rank in range(2):
        for name in ("ledger.jsonl", "trace.jsonl"):
            file = f"accounting/rank-{rank}/{name}"
            assert (rl.folder / file).read_bytes() == (straight.folder / file).read_bytes()
    assert kinds(rl) == ["gates", "launch", "exit", "gates", "launch", "gates", "set-aside", "launch", "exit"]


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
