"""What a smoke run computed against an uninterrupted run: every kind of difference is found, and the first is named."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from explicit_learning.errors import ExitCode
from explicit_learning.experiment.smoke_outputs import compare_outputs, difference_faults
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.jsonl import write_rows
from explicit_learning.rundir.output_comparison import read_comparison, write_comparison
from tests.support.finished_run import plan_document, sft_document
from tests.support.smoke_run import SMOKE, complete_smoke_run, rows_of_metrics, uninterrupted_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.finished_run import Run

TRACE = "accounting/rank-1/trace.jsonl"


def change_row(run: Run, number: int, **changes: Any) -> None:
    """Change a row of rank 1's trace; row 0 is the first completion."""
    path = run.folder / TRACE
    lines = path.read_text().splitlines()
    lines[number + 1] = json.dumps(json.loads(lines[number + 1]) | changes)
    path.write_text("\n".join(lines) + "\n")


def change_metric(run: Run, step: int, **changes: Any) -> None:
    rows = rows_of_metrics()
    rows[step - 1] |= changes
    write_rows(run.folder / "metrics.jsonl", rows)


def change_tensors(run: Run) -> None:
    values = np.full((2, 3), 0.5, dtype=np.float32)
    values[1, 2] = np.nextafter(np.float32(0.5), np.float32(1))
    save_file({"lora_A": values}, run.folder / "final-adapter" / "adapter_model.safetensors")


@pytest.mark.parametrize("document", [plan_document(**SMOKE), sft_document(**SMOKE)], ids=["rl", "sft"])
def test_equal_outputs(tmp_path: Path, document: dict[str, Any]) -> None:
    run = complete_smoke_run(tmp_path / "run", document)
    other = uninterrupted_run(run)
    if not run.is_sft:
        change_row(other, 20, running_commit="f" * 40)  # of the code, which decides no number by itself
    found = compare_outputs(run.folder, run.plan)
    assert (found.equal, found.first_difference, found.accepted_changes) == (True, None, ())
    assert [step.step for step in found.steps] == [1, 2, 3, 4, 5, 6]
    assert all(step.trace.resumed == step.trace.uninterrupted for step in found.steps)
    assert all(step.metrics.resumed == step.metrics.uninterrupted is not None for step in found.steps)
    assert [step.trace.resumed is None for step in found.steps] == [run.is_sft] * 6
    assert len({step.metrics.resumed for step in found.steps}) == 6
    assert found.completion_marker_sha256 == sha256_file(run.folder / "training-complete.json")
    assert (found.resumed_at, found.uninterrupted_launch_id) == ("checkpoint-5", "launch-11")
    assert difference_faults(run.folder, found) == []
    assert read_comparison(run.folder) is None
    write_comparison(run.folder, found)
    assert read_comparison(run.folder) == found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda run: change_metric(run, 6, loss=0.1), (6, "metrics.jsonl", "loss", "0.16666666666666666", "0.1")),
        (lambda run: change_metric(run, 2, grad_norm=None), (2, "metrics.jsonl", "grad_norm", "0.25", "null")),
        (lambda run: change_metric(run, 6, extra=1), (6, "metrics.jsonl", "extra", "nothing", "1")),
        (
            lambda run: write_rows(run.folder / "metrics.jsonl", rows_of_metrics()[:5]),
            (6, "metrics.jsonl", "the row", '"step 6"', "nothing"),
        ),
        # Four completions of rank 1 in each step: numbers 20 to 23 are those of step 6.
        (lambda run: change_row(run, 21, total=0.5), (6, TRACE, "total of completion s0.r1/5/1", "0.0", "0.5")),
        (
            lambda run: change_row(run, 20, completion_token_ids=[3, 4, 5, 7, 2]),
            (6, TRACE, "completion_token_ids of completion s0.r1/5/0", "[3, 4, 5, 6, 2]", "[3, 4, 5, 7, 2]"),
        ),
        (
            lambda run: change_row(run, 23, optimizer_step=4),
            (5, TRACE, "optimizer_step of completion s1.r1/5/1", "5", "4"),
        ),
        (change_tensors, (6, "final-adapter/adapter_model.safetensors", "digest of its tensors", None, None)),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, change: Any, expected: tuple[Any, ...]) -> None:
    run = complete_smoke_run(tmp_path / "run", plan_document(**SMOKE))
    change(uninterrupted_run(run))
    found = compare_outputs(run.folder, run.plan)
    first = found.first_difference
    assert first is not None
    assert not found.equal
    assert (first.step, first.file, first.field) == expected[:3]
    if expected[3] is not None:
        assert (first.resumed, first.uninterrupted) == expected[3:]
    else:
        tensors = found.final_adapter_tensors
        assert (first.resumed, first.uninterrupted) == (tensors.resumed, tensors.uninterrupted)
        assert first.resumed != first.uninterrupted
    write_comparison(run.folder, found)


def test_of_several_differences_the_first_by_step_and_kind_is_named(tmp_path: Path) -> None:
    run = complete_smoke_run(tmp_path / "run", plan_document(**SMOKE))
    other = uninterrupted_run(run)
    change_tensors(other)
    change_row(other, 22, total=0.5)
    rows = rows_of_metrics()
    rows[3]["loss"] = rows[5]["loss"] = 9.0
    write_rows(other.folder / "metrics.jsonl", rows)
    found = compare_outputs(run.folder, run.plan)
    assert found.first_difference is not None
    assert (found.first_difference.step, found.first_difference.field) == (4, "loss")
    unequal = [step.step for step in found.steps if step.metrics.resumed != step.metrics.uninterrupted]
    assert unequal == [4, 6]
    assert [step.step for step in found.steps if step.trace.resumed != step.trace.uninterrupted] == [6]


@pytest.mark.parametrize(
    ("step", "why"),
    [(6, "an interruption changes what this plan trains"), (5, "does not repeat what it computes")],
)
def test_a_difference_is_a_fault_under_strict_only(tmp_path: Path, step: int, why: str) -> None:
    run = complete_smoke_run(tmp_path / "run", plan_document(**SMOKE, determinism="strict"))
    change_metric(uninterrupted_run(run), step, grad_norm=0.5)
    found = compare_outputs(run.folder, run.plan)
    (fault,) = difference_faults(run.folder, found)
    assert fault.exit_code == ExitCode.INTERNAL
    assert fault.found == f"step {step}: grad_norm in metrics.jsonl is 0.25"
    assert fault.expected == f"0.5, as in the uninterrupted run {run.folder / 'uninterrupted'}"
    assert why in fault.fix
    assert difference_faults(run.folder, replace(found, determinism="seeded")) == []


def test_another_machine_is_recorded_where_it_was_accepted(tmp_path: Path) -> None:
    run = complete_smoke_run(tmp_path / "run", plan_document(**SMOKE))
    other = uninterrupted_run(run)
    path = other.folder / "launches" / "launch-11.json"
    record = json.loads(path.read_text())
    record["nodes"][0]["platform"]["hardware"]["cpu"]["model"] = "Model Two"
    path.write_text(json.dumps(record))
    for name, key in (("run-manifest.json", "last_launch_sha256"), ("launches/launch-11.end.json", "start_sha256")):
        held = json.loads((other.folder / name).read_text()) | {key: sha256_file(path)}
        (other.folder / name).write_text(json.dumps(held))
    (change,) = compare_outputs(run.folder, run.plan).accepted_changes
    assert change.pointer == "/nodes/0/platform/hardware/cpu/model"
    assert (change.before, change.now) == ("Model One", "Model Two")
