"""Records that were changed together with every hash that covers them, and the statement: the rest contradicts them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.completion.statement import write_statement
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.jsonl import write_rows
from explicit_learning.files.tree import FolderTree
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
    run.sample(range(1, 3), frontiers=saved)
    assert finish(run) == 0
    shutil.rmtree(run.folder / "checkpoint-1")
    return run.folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def change(file: Path, edit: Callable[[Any], object]) -> None:
    value = json.loads(file.read_bytes())
    edit(value)
    file.write_text(json.dumps(value))


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
    change(marker, lambda value: value["checkpoints"].clear())
    change(
        marker,
        lambda value: value["adapter"]["files"].update(
            {path.name: sha256_file(path) for path in (run / "final-adapter").iterdir()}
        ),
    )
    change(run / "run-manifest.json", lambda value: value.update(last_launch_sha256=newest))
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


def test_a_log_with_a_step_twice(run: Path) -> None:
    rows = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*rows, rows[-1], ""]))
    change(run / "training-complete.json", lambda value: value["log_history"].append(value["log_history"][-1]))
    assert ("training-complete.json", "/log_history") in faults(run)


def test_files_that_no_part_of_a_run_writes_are_told(run: Path) -> None:
    for name in ("foo.bin", "accounting/rank-9/ledger.jsonl", "launches-old/a.json"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("x")
    repair(run)
    found = verify_run(FolderTree(run))
    assert found.faults == ()
    (told,) = [text for text in found.not_checked if "no part of a run writes (3)" in text]
    assert "accounting/rank-9/ledger.jsonl" in told


def test_a_mean_reward_and_a_mean_length_that_the_traces_do_not_give(run: Path) -> None:
    rows = [{"step": step, "reward": 1.0, "completions/mean_length": 64.0} for step in (1, 2, 3)]
    write_rows(run / "metrics.jsonl", rows)
    change(run / "training-complete.json", lambda value: value.update(log_history=rows, metrics=rows[-1]))
    found = faults(run)
    for name in ("reward", "completions~1mean_length"):
        assert ("training-complete.json", f"/log_history/0/{name}") in found
    rows = [row | {"reward": 0.5, "completions/mean_length": 5.5} for row in rows]
    write_rows(run / "metrics.jsonl", rows)
    change(run / "training-complete.json", lambda value: value.update(log_history=rows, metrics=rows[-1]))
    assert faults(run) == []


def test_other_counts_of_adapted_modules_contradict_the_tensors(run: Path) -> None:
    marker = run / "training-complete.json"
    change(marker, lambda value: value["parameters"]["modules"].update(language=1, other=0))
    assert ("training-complete.json", "/parameters/modules") in faults(run)
    change(marker, lambda value: value["parameters"].pop("modules"))  # as markers were before this was counted
    assert ("training-complete.json", "/parameters/modules") not in faults(run)
