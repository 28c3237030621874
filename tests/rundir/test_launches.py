"""The records of launches: immutable, chained, and each named by what it holds."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir import launches as launches_module
from explicit_learning.rundir.launches import (
    EndRecord,
    Launch,
    StartRecord,
    read_launches,
    source_of,
    write_end,
    write_start,
)
from explicit_learning.rundir.run_manifest import (
    create_run_manifest,
    note_launch,
    read_run_manifest,
    write_run_manifest,
)
from tests.support.finished_run import plan_document
from tests.support.machines import MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = (0, 4, 4, 8)
MANIFEST = create_run_manifest(from_json(Plan, plan_document()), plan_sha256="9" * 64)


def start(number: int, step: int, previous: str | None, previous_end: str | None = None) -> StartRecord:
    return StartRecord(
        launch_id=f"{9 - number}a",  # names sort the other way round
        number=number,
        previous_sha256=previous,
        previous_end_sha256=previous_end,
        run_manifest_sha256=MANIFEST.run_manifest_sha256,
        checkpoint=f"checkpoint-{step}" if step else None,
        step=step,
        nodes=(MACHINE,),
        accepted_changes=(),
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of four launches, of which the second ended in order."""
    write_run_manifest(tmp_path, MANIFEST)
    previous: str | None = None
    for number, step in enumerate(STEPS):
        ended = sha256_file(tmp_path / "launches/8a.end.json") if number == 2 else None
        record = start(number, step, previous, ended)
        write_start(tmp_path, record)
        previous = sha256_file(tmp_path / f"launches/{record.launch_id}.json")
        if number == 1:
            write_end(
                tmp_path,
                EndRecord(launch_id=record.launch_id, start_sha256=previous, exit_code=75, ranks=(), faults=()),
            )
    return tmp_path


def test_launches_come_back_in_order_with_their_hashes(run: Path) -> None:
    launches = read_launches(run)
    assert [launch.start.step for launch in launches] == list(STEPS)
    assert [launch.start.launch_id for launch in launches] == ["9a", "8a", "7a", "6a"]
    for launch in launches:
        assert launch.start_sha256 == sha256_file(run / f"launches/{launch.start.launch_id}.json")
    assert [launch.end and launch.end.exit_code for launch in launches] == [None, 75, None, None]
    assert launches[1].end_sha256 == sha256_file(run / "launches/8a.end.json")


def test_a_run_without_launches_has_none(tmp_path: Path) -> None:
    assert read_launches(tmp_path) == ()


def test_what_a_kill_or_a_file_system_leaves_is_no_launch(run: Path) -> None:
    for name in (".writing-abc-9a.json", ".nfs0001", ".DS_Store"):
        (run / "launches" / name).write_text("{")
    assert len(read_launches(run)) == len(STEPS)


@pytest.mark.parametrize("gone", ["9a.json", "8a.json", "7a.json", "6a.json", "8a.end.json"])
def test_a_removed_record_is_found(run: Path, gone: str) -> None:
    (run / "launches" / gone).unlink()
    with pytest.raises(Refusal) as refused:
        read_launches(run)
    assert refused.value.exit_code == ExitCode.CONTRACT
    assert refused.value.faults[0].fix.startswith("restore the folder launches/ from a copy")


@pytest.mark.parametrize("changed", ["9a.json", "8a.json", "7a.json", "6a.json", "8a.end.json"])
def test_a_changed_record_is_found(run: Path, changed: str) -> None:
    path = run / "launches" / changed
    before = path.read_text()
    path.write_text(before.replace("Model One", "Model Two").replace('"exit_code": 75', '"exit_code": 70'))
    assert path.read_text() != before
    with pytest.raises(Refusal):
        read_launches(run)


def test_all_records_removed_is_found(run: Path) -> None:
    shutil.rmtree(run / "launches")
    with pytest.raises(Refusal, match="no record"):
        read_launches(run)


def test_a_file_that_is_no_record_is_named(run: Path) -> None:
    (run / "launches" / "5a.end.json").write_text("{}")
    with pytest.raises(Refusal) as refused:
        read_launches(run)
    assert (refused.value.faults[0].file, refused.value.faults[0].found) == (str(run / "launches"), "5a.end.json")


def test_a_record_of_another_run_is_named(run: Path) -> None:
    path = run / "launches" / "6a.json"
    path.write_text(path.read_text().replace(MANIFEST.run_manifest_sha256, "1" * 64))
    with pytest.raises(Refusal, match="it is another run's") as refused:
        read_launches(run)
    assert refused.value.faults[0].file == str(path)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_something_in_place_of_the_folder_is_named(run: Path, kind: str) -> None:
    shutil.rmtree(run / "launches")
    if kind == "file":
        (run / "launches").write_text("")
    else:
        (run / "launches").symlink_to(run / "elsewhere")
    with pytest.raises(Refusal) as refused:
        read_launches(run)
    assert refused.value.faults[0].found == ("a file" if kind == "file" else "a link")


@pytest.mark.parametrize(
    "change",
    [
        lambda hardware: hardware.clear(),
        lambda hardware: hardware.pop("cpu"),
        lambda hardware: hardware.update(cpu=None),
        lambda hardware: hardware["cpu"].update(instruction_sets="avx"),
        lambda hardware: hardware["nvidia"].update(gpus=[{"name": "H200"}]),
    ],
)
def test_hardware_of_another_form_is_refused_as_a_record(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = run / "launches" / "6a.json"
    document = json.loads(path.read_text())
    change(document["nodes"][0]["platform"]["hardware"])
    path.write_text(json.dumps(document))
    with pytest.raises(Refusal) as refused:
        read_launches(run)
    assert {(fault.exit_code, fault.file) for fault in refused.value.faults} == {(ExitCode.CONTRACT, str(path))}


def test_a_record_that_a_kill_kept_from_being_noted_is_a_launch(run: Path) -> None:
    launches = read_launches(run)
    manifest = replace(read_run_manifest(run), last_launch_sha256=launches[2].start_sha256)
    write_run_manifest(run, manifest)
    assert read_launches(run) == launches
    write_run_manifest(run, replace(manifest, last_launch_sha256=launches[1].start_sha256))
    with pytest.raises(Refusal, match="a newest record with SHA-256"):
        read_launches(run)


def test_a_record_under_another_name_is_found(run: Path) -> None:
    (run / "launches/6a.json").rename(run / "launches/5a.json")
    with pytest.raises(Refusal) as refused:
        read_launches(run)
    (fault,) = refused.value.faults
    assert (fault.pointer, fault.found, fault.expected) == ("/launch_id", "5a.json", "6a.json")


def test_an_end_of_another_start_is_found(run: Path) -> None:
    path = run / "launches/8a.end.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"start_sha256": "0" * 64}))
    with pytest.raises(Refusal, match="/start_sha256"):
        read_launches(run)


@pytest.mark.parametrize(
    ("steps", "resumed", "expected"),
    [
        ((), 0, None),
        ((0,), 0, None),
        ((0,), 4, 0),
        ((0, 4), 4, 0),  # the second made no checkpoint
        ((0, 4), 6, 1),
        ((0, 4, 4), 6, 2),
        ((0, 8, 6), 6, 0),  # a later checkpoint was lost
        ((0, 8, 6), 10, 2),
        ((0, 0), 2, 1),
    ],
)
def test_the_launch_that_made_a_checkpoint(steps: tuple[int, ...], resumed: int, expected: int | None) -> None:
    starts = [start(number, step, None) for number, step in enumerate(steps)]
    launches = [Launch(start=each, start_sha256="0" * 64, end=None, end_sha256=None) for each in starts]
    assert source_of(launches, resumed) == (None if expected is None else starts[expected])


def test_kills_that_keep_one_record_after_another_from_being_noted_lose_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    for number in (len(STEPS), len(STEPS) + 1, len(STEPS) + 2):
        before = read_launches(run)
        record = start(number, 8, before[-1].start_sha256)

        def note(run: Path, sha256: str, previous: str | None = record.previous_sha256) -> None:
            if sha256 != previous:
                raise KilledError
            note_launch(run, sha256)

        monkeypatch.setattr(launches_module, "note_launch", note)
        with pytest.raises(KilledError):
            write_start(run, record)
        assert [launch.start for launch in read_launches(run)] == [*(launch.start for launch in before), record]


def test_a_record_that_breaks_its_schema_is_not_written(run: Path) -> None:
    before = read_launches(run)
    with pytest.raises(Refusal, match="/number") as refused:
        write_start(run, replace(start(0, 0, None), launch_id="5a", number=-1))
    assert refused.value.exit_code == ExitCode.INTERNAL
    assert read_launches(run) == before


def test_a_record_is_written_only_once(run: Path) -> None:
    before = (run / "launches/9a.json").read_bytes()
    with pytest.raises(FileExistsError):
        write_start(run, start(0, 8, None))
    assert (run / "launches/9a.json").read_bytes() == before
