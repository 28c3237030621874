"""A run with two launches on two machines: its records, its marker, its card, and what the terminal shows."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.completion.launches import differences, node_changes, other_gpus, record_start
from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import to_json
from explicit_learning.rundir.completion_marker import Difference, read_marker
from explicit_learning.rundir.events import read_events
from explicit_learning.rundir.launches import Change, ImageDigest, read_launches
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.rank_report import RankGpu
from explicit_learning.rundir.run_manifest import read_run_manifest
from tests.support.machines import COMMIT, MACHINE

if TYPE_CHECKING:
    from explicit_learning.accounting.frontier import RankFrontiers
    from explicit_learning.rundir.launches import Machine
    from tests.support.finished_run import Run

CHANGED_COMMIT = "f" * 40


def other_machine() -> Machine:
    """Return a machine of another image, model of CPU and commit."""
    cpu = MACHINE.platform.hardware["cpu"] | {"model": "Model Two"}
    digests = MACHINE.image.digests | {"config": ImageDigest(value=f"sha256:{'a' * 64}", known_by="declared")}
    return replace(
        MACHINE,
        image=replace(MACHINE.image, digests=digests),
        platform=replace(MACHINE.platform, hardware=MACHINE.platform.hardware | {"cpu": cpu}),
        code=replace(MACHINE.code, commit=CHANGED_COMMIT, dirty=True, files_sha256="5" * 64),
    )


OTHER = other_machine()
CPU_CHANGE = Change(pointer="/nodes/0/platform/hardware/cpu/model", before="Model One", now="Model Two")


def begin(run: Run) -> list[RankFrontiers]:
    run.prepare()
    saved = run.sample(range(1))
    run.checkpoint(1, saved)
    stopped = RankOutcome(status="stopped", optimizer_step=1, checkpoint="checkpoint-1")
    after_ranks(run.launch_manifest(), [stopped] * 2)
    return saved


def finish(run: Run, saved: list[RankFrontiers]) -> ExitCode:
    run.checkpoint(3, run.sample(range(1, 3), frontiers=saved))
    return after_ranks(run.launch_manifest(), run.completed(run.reports(run.save_adapter()))).exit_code


def card(run: Run) -> str:
    return (run.folder / "final-adapter" / "README.md").read_text()


def test_two_machines_are_told_apart_everywhere(rl: Run, capsys: pytest.CaptureFixture[str]) -> None:
    saved = begin(rl)
    rl.machine = OTHER
    with pytest.raises(Refusal, match="Model One, as in the launch") as refused:
        rl.prepare()
    assert refused.value.exit_code == ExitCode.HARDWARE
    assert len(read_launches(rl.folder)) == 1, "a refused launch has no record"
    capsys.readouterr()
    rl.prepare(accept_changes=True)
    told = capsys.readouterr().err
    line = "this launch differs from the one before: /platform/hardware/cpu/model is Model Two, was Model One"
    assert told.splitlines()[0] == f"{line} (this decides numbers)"
    assert f"/code/commit is {CHANGED_COMMIT}, was {COMMIT}" in told
    assert finish(rl, saved) == ExitCode.DONE

    marker, launches = read_marker(rl.folder), read_launches(rl.folder)
    assert marker.machines == (MACHINE, OTHER)
    first, second = marker.launches.records
    assert (first.machines, first.from_step, first.to_step, first.exit_code) == ((0,), 0, 1, 75)
    assert (second.machines, second.from_step, second.to_step, second.exit_code) == ((1,), 1, 3, None)
    assert (first.accepted_changes, second.accepted_changes) == ((), (CPU_CHANGE,))
    for entry, launch in zip(marker.launches.records, launches, strict=True):
        assert entry.start_sha256 == sha256_file(rl.folder / f"launches/{launch.start.launch_id}.json")
    assert first.end_sha256 == sha256_file(rl.folder / "launches/launch-1.end.json")
    assert second.end_sha256 is None, "it is written after the marker"
    assert launches[1].end is not None
    assert {each.pointer: each.values for each in marker.differences} == {
        "/code/commit": (COMMIT, CHANGED_COMMIT),
        "/code/dirty": ("false", "true"),
        "/code/files_sha256": ("4" * 64, "5" * 64),
        "/image/digests/config/known_by": ("undeclared", "declared"),
        "/image/digests/config/value": ("null", f"sha256:{'a' * 64}"),
        "/platform/hardware/cpu/model": ("Model One", "Model Two"),
    }
    assert (marker.identities.running_commit, marker.identities.running_dirty) == (CHANGED_COMMIT, True)

    assert "Launch 1 accepted `/nodes/0/platform/hardware/cpu/model`: Model Two, where it was Model One" in card(rl)
    assert "The last launch ran with changes that are in no commit. Launches of other code: 0;" in card(rl)
    manifest = json.loads((rl.folder / "run-manifest.json").read_text())
    assert "Model" not in json.dumps(manifest), "what differs between launches is not the run's"
    completion = read_run_manifest(rl.folder).completion
    assert completion is not None
    assert (completion.running_commit, completion.running_dirty) == (CHANGED_COMMIT, True)
    for text in ("launch 0 from step 0", "launch 1 from step 1", "CPU Model One", "CPU Model Two", "sha256:aaaa"):
        assert text in card(rl)
    assert "| `/platform/hardware/cpu/model` | Model One | Model Two |" in card(rl)
    assert f"code {CHANGED_COMMIT} (with changes)" in card(rl)


def test_launches_on_one_machine_differ_in_nothing(rl: Run, capsys: pytest.CaptureFixture[str]) -> None:
    saved = begin(rl)
    capsys.readouterr()
    rl.prepare()
    assert "differs" not in capsys.readouterr().err
    assert finish(rl, saved) == ExitCode.DONE
    marker = read_marker(rl.folder)
    assert (marker.machines, marker.differences) == ((MACHINE,), ())
    assert [entry.machines for entry in marker.launches.records] == [(0,), (0,)]
    for text in ("not the same on all", "accepted", "other code", "in no commit"):
        assert text not in card(rl)


def test_what_decides_no_number_is_told_and_not_refused(rl: Run, capsys: pytest.CaptureFixture[str]) -> None:
    begin(rl)
    hardware = MACHINE.platform.hardware | {"kernel": "Linux 7"}
    rl.machine = replace(MACHINE, platform=replace(MACHINE.platform, hardware=hardware))
    rl.prepare()
    assert "/platform/hardware/kernel is Linux 7, was not there" in capsys.readouterr().err
    assert read_launches(rl.folder)[1].start.accepted_changes == ()


def test_nodes_are_compared_with_node_0(rl: Run) -> None:
    rl.prepare()
    manifest = rl.launch_manifest()
    assert node_changes(manifest, MACHINE, 1) == []
    change = replace(CPU_CHANGE, pointer="/nodes/1/platform/hardware/cpu/model")
    assert node_changes(manifest, OTHER, 1) == [change]


def test_what_a_following_node_accepts_is_in_the_record_too(rl: Run) -> None:
    rl.prepare(record=False)
    record_start(rl.launch_manifest(), [MACHINE])
    rl.checkpoint(1, rl.sample(range(1)))
    rl.prepare(accept_changes=True, record=False)
    record_start(rl.launch_manifest(), [OTHER])
    accepted = read_launches(rl.folder)[1].start.accepted_changes
    assert accepted == (replace(CPU_CHANGE, pointer="/nodes/1/platform/hardware/cpu/model"),)


def test_the_nodes_of_a_launch_are_in_its_record(rl: Run) -> None:
    rl.prepare(record=False)
    record_start(rl.launch_manifest(), [OTHER])
    (launch,) = read_launches(rl.folder)
    assert launch.start.nodes == (MACHINE, OTHER)
    assert [change.pointer for change in launch.start.accepted_changes] == ["/nodes/1/platform/hardware/cpu/model"]


@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_a_damaged_record_is_refused_before_anything_is_trained(rl: Run, damage: str) -> None:
    begin(rl)
    path = rl.folder / "launches/launch-1.json"
    if damage == "removed":
        path.unlink()
    else:
        path.write_text(path.read_text().replace("Model One", "Model Two"))
    with pytest.raises(Refusal) as refused:
        rl.prepare()
    assert refused.value.exit_code == ExitCode.CONTRACT
    assert refused.value.faults[0].fix.startswith("restore the folder launches/ from a copy")


def test_a_record_that_vanishes_during_the_launch_is_the_end_of_it(rl: Run) -> None:
    rl.prepare()
    (rl.folder / "launches/launch-1.json").unlink()
    rl.checkpoint(3, rl.sample())
    end = after_ranks(rl.launch_manifest(), rl.completed(rl.reports(rl.save_adapter())))
    assert end.faults[0].file == str(rl.folder / "launches")
    assert end.faults[0].exit_code == ExitCode.CONTRACT
    assert not (rl.folder / "training-complete.json").exists()


def test_a_launch_that_started_no_rank_has_no_record_and_an_end_in_the_log(rl: Run) -> None:
    rl.prepare(record=False)
    after_ranks(rl.launch_manifest(), [RankOutcome(status="stopped", optimizer_step=None)] * 2)
    assert not (rl.folder / "launches").exists()
    assert read_events(FolderTree(rl.folder))[0][-1].data == {"launch_id": "launch-1", "exit_code": 75}


def test_what_decides_numbers_is_said_first_however_much_else_differs(
    rl: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(rl)
    hardware = MACHINE.platform.hardware | {"nvidia": {"gpus": [{"uuid": f"GPU-{n}", "name": "A"} for n in range(20)]}}
    libraries = MACHINE.platform.libraries | {"torch": "2.10.0"}
    environment = replace(MACHINE.environment, explicit={"EXPLICIT_RUNS": "/out"})
    platform = replace(MACHINE.platform, hardware=hardware, libraries=libraries)
    rl.machine = replace(MACHINE, platform=platform, environment=environment)
    capsys.readouterr()
    rl.prepare(accept_changes=True)
    told = capsys.readouterr().err.splitlines()
    what = "this launch differs from the one before"
    assert told[0] == f"{what}: /platform/libraries/torch is 2.10.0, was 2.11.0 (this decides numbers)"
    assert f"{what}: /environment/explicit/EXPLICIT_RUNS is /out, was not there" in told
    assert told[-1].endswith("more places")
    assert not any("{}" in line for line in told)


def test_values_with_control_characters_or_of_any_length_fit_a_line(
    rl: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = begin(rl)
    settings = MACHINE.environment.settings | {"LD_LIBRARY_PATH": "a\x1b[31m\nrefused |<script>" + "x" * 5000}
    rl.machine = replace(MACHINE, environment=replace(MACHINE.environment, settings=settings))
    capsys.readouterr()
    rl.prepare()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "this launch differs from the one before: /environment/settings/LD_LIBRARY_PATH is a\\u001b[31m\\u000arefused"
    )
    assert len(line) < 400
    assert finish(rl, saved) == ExitCode.DONE
    assert "\x1b" not in card(rl)
    assert "<script>" not in card(rl)
    assert len(card(rl)) < 10_000


def test_a_file_that_is_no_record_is_named_before_anything_is_trained(rl: Run) -> None:
    begin(rl)
    (rl.folder / "launches" / "notes.txt").write_text("x")
    with pytest.raises(Refusal) as refused:
        rl.prepare()
    assert refused.value.faults[0].found == "notes.txt"
    assert refused.value.faults[0].fix.startswith("remove what is not a record of a launch")


def test_a_file_that_is_no_record_costs_no_end_of_the_launch(rl: Run) -> None:
    rl.prepare()
    (rl.folder / "launches" / "notes.txt").write_text("x")
    rl.checkpoint(3, rl.sample())
    end = after_ranks(rl.launch_manifest(), rl.completed(rl.reports(rl.save_adapter())))
    assert (end.exit_code, [fault.found for fault in end.faults]) == (ExitCode.CONTRACT, ["notes.txt"])
    assert (rl.folder / "launches/launch-1.end.json").is_file()
    assert read_events(FolderTree(rl.folder))[0][-1].data == {"launch_id": "launch-1", "exit_code": 65}


def test_an_end_record_that_cannot_be_written_keeps_no_event_and_no_completion_away(
    rl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "launches/launch-1.end.json")

    rl.prepare()
    rl.checkpoint(3, rl.sample())
    monkeypatch.setattr("explicit_learning.completion.launches.write_end", full)
    end = after_ranks(rl.launch_manifest(), rl.completed(rl.reports(rl.save_adapter())))
    (fault,) = end.faults
    assert (end.exit_code, fault.file) == (ExitCode.IO, str(rl.folder))
    assert "launch-1.end.json" in fault.found
    assert fault.fix.endswith("the run itself is complete")
    assert read_run_manifest(rl.folder).status == "completed"
    assert read_events(FolderTree(rl.folder))[0][-1].kind == "exit"


def gpu(number: int) -> RankGpu:
    return RankGpu(uuid=f"GPU-{number}", cuda="13.0", cudnn=None, nccl=None)


@pytest.mark.parametrize(
    ("used", "told"),
    [
        ([gpu(1), gpu(2)], []),
        ([gpu(2), gpu(1)], ["rank 0 used GPU-2, recorded is GPU-1", "rank 1 used GPU-1, recorded is GPU-2"]),
        ([gpu(1)], ["1 GPUs were used, 2 recorded"]),
    ],
)
def test_ranks_on_other_gpus_than_recorded_are_told(rl: Run, used: list[RankGpu], told: list[str]) -> None:
    rl.machine = replace(MACHINE, platform=replace(MACHINE.platform, gpus=("GPU-1", "GPU-2")))
    rl.prepare()
    assert other_gpus(read_launches(rl.folder)[0], used) == told


def test_differences_name_every_place_once() -> None:
    assert differences([MACHINE]) == ()
    libraries = replace(MACHINE.platform, libraries={"python": "3.12.3", "glibc": "2.39"})
    found = differences([MACHINE, replace(MACHINE, platform=libraries), OTHER])
    assert Difference(pointer="/platform/libraries/torch", values=("2.11.0", "not there", "2.11.0")) in found
    assert [each.pointer for each in found] == sorted({each.pointer for each in found})
    assert to_json(found[0])["values"] == list(found[0].values)
