"""Records that were changed together with every hash that covers them, and the statement: the rest contradicts them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.completion.card import CardRecords, model_card
from explicit_learning.completion.envelope import wrap
from explicit_learning.completion.statement import build_statement, write_statement
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.tree import FolderTree, hash_tree
from explicit_learning.plan.reading import load_plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.completion_marker import read_marker
from explicit_learning.rundir.launches import read_launches
from explicit_learning.rundir.run_manifest import read_run_manifest
from explicit_learning.verify.verifying import verify_run
from tests.support.finished_run import Run, plan_document
from tests.support.lifecycle import finish, stopped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two launches: the first was stopped at step 1."""
    from explicit_learning.completion.lifecycle import after_ranks

    run = Run.of(tmp_path_factory.mktemp("forged") / "run", plan_document())
    run.prepare()
    saved = run.sample(range(1))
    run.checkpoint(1, saved)
    after_ranks(run.launch_manifest(), [stopped(1)] * 2)
    run.prepare()
    run.checkpoint(3, run.sample(range(1, 3), frontiers=saved))
    assert finish(run) == 0
    return run.folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def change(file: Path, edit: Callable[[Any], object]) -> None:
    value = json.loads(file.read_bytes())
    edit(value)
    file.write_text(json.dumps(value))


def sealed(folder: Path) -> dict[str, Any]:
    """List a checkpoint's files in its mark again, and return what the marker then says of it."""
    mark = folder / "complete.json"
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != mark
    }
    change(mark, lambda value: value.update(files=files))
    hashes = {name: entry["sha256"] for name, entry in files.items()}
    step = int(folder.name.partition("-")[2])
    return {"name": folder.name, "step": step, "mark_sha256": sha256_file(mark), "files": hashes}


def repair(run: Path) -> None:
    """Compute again whatever covers a changed record, as a forger does, and write the statement."""
    marker = run / "training-complete.json"
    ends = {path.name.removesuffix(".end.json"): path for path in run.glob("launches/*.end.json")}
    for name in ("launch-1", "launch-2"):
        start = run / f"launches/{name}.json"
        if name == "launch-2" and "launch-1" in ends:
            end = sha256_file(ends["launch-1"])
            change(start, lambda value, end=end: value.update(previous_end_sha256=end))
            change(marker, lambda value, end=end: value["launches"]["records"][0].update(end_sha256=end))
        sha256 = sha256_file(start)
        number = int(name[-1]) - 1
        change(marker, lambda value, n=number, s=sha256: value["launches"]["records"][n].update(start_sha256=s))
        if name in ends:
            change(ends[name], lambda value, s=sha256: value.update(start_sha256=s))
    newest = sha256_file(run / "launches/launch-2.json")
    change(run / "run-manifest.json", lambda value: value.update(last_launch_sha256=newest))
    change(marker, lambda value: value.update(checkpoints=[sealed(run / f"checkpoint-{step}") for step in (1, 3)]))
    records = CardRecords.of_complete_run(
        load_plan(run / "plan.json"), read_run_manifest(run), read_launches(run), read_marker(run)
    )
    (run / "final-adapter/README.md").write_text(model_card(records))
    change(
        marker,
        lambda value: value["adapter"]["files"].update(
            {path.name: sha256_file(path) for path in (run / "final-adapter").iterdir()}
        ),
    )
    sha256 = sha256_file(marker)
    change(run / "run-manifest.json", lambda value: value["completion"].update(completion_marker_sha256=sha256))
    write_statement(run, None)


def faults(run: Path) -> list[tuple[str, str | None]]:
    repair(run)
    found = verify_run(FolderTree(run)).faults
    assert "files" not in {fault.gate for fault in found}
    return [((fault.file or "").removeprefix(f"{run}/"), fault.pointer) for fault in found]


def test_the_repaired_run_itself_is_verified(run: Path) -> None:
    assert faults(run) == []


def test_a_launch_that_began_beyond_what_was_reached(run: Path) -> None:
    for rank in (0, 1):
        change(run / "launches/launch-1.end.json", lambda value, r=rank: value["ranks"][r].update(optimizer_step=0))
    assert ("launches/launch-2.json", "/step") in faults(run)


@pytest.mark.parametrize("field", [{"status": "failed"}, {"optimizer_step": 1}])
def test_a_last_launch_that_did_not_complete_the_run(run: Path, field: dict[str, Any]) -> None:
    change(run / "launches/launch-2.end.json", lambda value: value["ranks"][1].update(field))
    assert ("launches/launch-2.end.json", f"/ranks/1/{next(iter(field))}") in faults(run)


FAULT = {"gate": "rows", "file": None, "pointer": None, "found": "3", "expected": "4", "fix": "restore it"}
# Of the end of the first launch, whose ranks stopped at step 1: what is changed in it, and in each of its ranks.
ENDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "code of a failure": ({"exit_code": 70}, {}, "/exit_code"),
    "code of a complete run": ({"exit_code": 0}, {}, "/exit_code"),
    "code of a budget": ({"exit_code": 79}, {}, "/exit_code"),
    "faults of a stop": ({"faults": [FAULT]}, {}, "/exit_code"),
    "no ranks": ({"ranks": []}, {}, "/ranks"),
    "another status": ({}, {"status": "budget_exhausted"}, "/exit_code"),
    "a failure with a stop's step": ({"exit_code": 70}, {"status": "failed", "message": "no"}, "/ranks/0/checkpoint"),
    "a failure that measured": (
        {"exit_code": 70},
        {"status": "failed", "message": "no", "optimizer_step": None, "checkpoint": None, "device_seconds": 3.0},
        "/ranks/0/device_seconds",
    ),
    "a failure without a message": (
        {"exit_code": 70},
        {"status": "failed", "optimizer_step": None, "checkpoint": None},
        "/ranks/1/message",
    ),
    "another checkpoint": ({}, {"checkpoint": "checkpoint-2"}, "/ranks/1/optimizer_step"),
    "no checkpoint": ({}, {"checkpoint": None}, "/ranks/1/optimizer_step"),
    "a step beyond the plan": ({}, {"checkpoint": "checkpoint-9", "optimizer_step": 9}, "/ranks/1/checkpoint"),
    "completed before the last step": ({"exit_code": 0}, {"status": "completed"}, "/ranks/0/checkpoint"),
    "a phase with more memory": (
        {},
        {"phases": {"load": {"seconds": 1.0, "peak_memory_bytes": 9}}, "peak_memory_bytes": 8},
        "/ranks/0/phases/load/peak_memory_bytes",
    ),
    "completed earlier": (
        {"exit_code": 0},
        {"status": "completed", "checkpoint": "checkpoint-3", "optimizer_step": 3},
        "/exit_code",
    ),
}


@pytest.mark.parametrize("kind", ENDS)
def test_the_end_of_a_launch_that_contradicts_itself(run: Path, kind: str) -> None:
    fields, of_ranks, pointer = ENDS[kind]

    def edit(end: dict[str, Any]) -> None:
        end.update(fields)
        for rank in end["ranks"]:
            rank.update(of_ranks)

    change(run / "launches/launch-1.end.json", edit)
    exit_code = fields.get("exit_code", 75)
    change(run / "training-complete.json", lambda value: value["launches"]["records"][0].update(exit_code=exit_code))
    assert ("launches/launch-1.end.json", pointer) in faults(run)


@pytest.mark.parametrize(
    ("edit", "pointer"),
    [
        (lambda ranks: ranks.reverse(), "/ranks"),
        (lambda ranks: ranks.pop(), "/ranks"),
        (lambda ranks: ranks[1].update(checkpoint="checkpoint-2", optimizer_step=2), "/ranks"),
        (lambda ranks: ranks[1].update(status="completed", checkpoint="checkpoint-3", optimizer_step=3), "/exit_code"),
    ],
)
def test_ranks_that_cannot_have_ended_a_launch_together(
    run: Path, edit: Callable[[list[Any]], object], pointer: str
) -> None:
    change(run / "launches/launch-1.end.json", lambda value: edit(value["ranks"]))
    assert ("launches/launch-1.end.json", pointer) in faults(run)


def test_a_launch_whose_ranks_failed_is_verified(run: Path) -> None:
    def edit(end: dict[str, Any]) -> None:
        end["exit_code"] = 74
        for rank in end["ranks"]:
            rank.update(status="failed", message="disk full", optimizer_step=None, checkpoint=None)

    change(run / "launches/launch-1.end.json", edit)
    change(run / "training-complete.json", lambda value: value["launches"]["records"][0].update(exit_code=74))
    assert faults(run) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("r", 99), ("lora_alpha", 1), ("bias", "all"), ("target_modules", ["foo"]), ("use_dora", True)],
)
def test_an_adapter_of_another_configuration(run: Path, field: str, value: Any) -> None:
    change(run / "final-adapter/adapter_config.json", lambda config: config.update({field: value}))
    assert ("final-adapter/adapter_config.json", f"/{field}") in faults(run)


def test_an_adapter_that_names_an_absolute_base_model(run: Path) -> None:
    change(run / "final-adapter/adapter_config.json", lambda value: value.update(base_model_name_or_path="/evil"))
    assert ("final-adapter/adapter_config.json", "/base_model_name_or_path") in faults(run)


def test_metrics_that_were_removed(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    assert ("metrics.jsonl", None) in faults(run)


STRANGE = (
    "foo.bin",
    "accounting/rank-9/ledger.jsonl",
    "launches-old/a.json",
    "set-aside/anything.bin",
    "uninterrupted/foo.bin",
)
FAMILIAR = (
    "logs/rank-0.log",
    "tensorboard/events",
    "set-aside/checkpoint-2.0001/a.bin",
    "set-aside/final-adapter.0002/README.md",
    "uninterrupted/launches/n1.json",
    "uninterrupted/logs/rank-0.log",
)


def test_files_that_no_part_of_a_run_writes_are_faults(run: Path) -> None:
    repair(run)
    for name in (*STRANGE, *FAMILIAR):
        (run / name).parent.mkdir(exist_ok=True, parents=True)
        (run / name).write_text("x")
    tree = FolderTree(run)
    hashes, _ = hash_tree(tree, filter(layout.is_covered, tree.files))
    (run / layout.statement_file()).write_bytes(wrap(build_statement(tree, hashes, keyid=None), None))
    found = verify_run(tree).faults
    assert [fault.file for fault in found] == [str(run / name) for name in sorted(STRANGE)]
    assert {(fault.gate, fault.found) for fault in found} == {("files", "another file")}


def test_a_run_with_a_strange_file_gets_no_statement(run: Path) -> None:
    (run / layout.statement_file()).unlink()
    (run / "slurm-12.out").write_text("x")
    with pytest.raises(Refusal) as refusal:
        write_statement(run, None)
    (fault,) = refusal.value.faults
    assert (fault.file, fault.exit_code) == (str(run / "slurm-12.out"), ExitCode.OUTPUT)
    assert not (run / layout.statement_file()).exists()


def test_other_counts_of_adapted_modules_contradict_the_tensors(run: Path) -> None:
    marker = run / "training-complete.json"
    change(marker, lambda value: value["parameters"]["modules"].update(language=1, other=0))
    assert ("training-complete.json", "/parameters/modules") in faults(run)
