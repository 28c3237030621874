"""What a checkpoint holds is compared with whatever else tells the same, as far as that is possible without torch."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.tree import FolderTree
from explicit_learning.verify.accounting.sampled_steps import SampledSteps, StepCounts
from explicit_learning.verify.torch_files import torch_file_faults
from explicit_learning.verify.verifying import verify_run
from tests.support.finished_run import Run, plan_document, row, sampled, sft_document
from tests.support.lifecycle import finish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LAST = "checkpoint-3"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.of(tmp_path / "run", plan_document(objective__beta=0.01))
    made.prepare()
    return made


def complete(folder: Path, document: dict[str, Any], rows: list[dict[str, Any]], **state: Any) -> list[tuple[str, str]]:
    """Finish a run with a log and a changed trainer state; return file and pointer of the faults of checkpoints."""
    run = Run.of(folder, document)
    run.prepare()
    whole = run.checkpoint(3, [] if run.is_sft else run.sample(), seal=False)
    edit(whole / "trainer_state.json", lambda value: value.update(state))
    run.seal(whole, 3)
    assert finish(run, log_history=tuple(rows)) == 0
    found = verify_run(FolderTree(run.folder)).faults
    return [((fault.file or "").removeprefix(f"{run.folder}/"), fault.pointer or "") for fault in found]


def edit(file: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(file.read_bytes())
    change(value)
    file.write_text(json.dumps(value))


def test_a_log_with_values_that_are_not_finite_is_that_of_the_marker(tmp_path: Path) -> None:
    """A step whose completions were all cut off has no mean reward: transformers writes NaN, the marker null."""
    rows = [{"step": 1, "loss": 0.5, "reward": None}, {"step": 2, "loss": 0.25, "kl": None}]
    logged = [
        {"step": 1, "loss": 0.5, "reward": float("nan"), "epoch": 0.3, "step_time": 1.5},
        {"step": 2, "loss": 0.25, "kl": float("inf")},
    ]
    for name, document in (("run", plan_document()), ("sft", sft_document())):
        found = complete(tmp_path / name, document, rows, log_history=logged)
        assert f"{LAST}/trainer_state.json" not in {file for file, _ in found}


@pytest.mark.parametrize(
    ("state", "pointers"),
    [
        ({"global_step": 2}, ["/global_step"]),
        ({"global_step": True}, ["/global_step"]),
        ({"max_steps": 4}, ["/max_steps"]),
        ({"log_history": None}, ["/log_history"]),
        ({"log_history": [{}]}, ["/log_history/0"]),
        ({"log_history": [{"step": 3, "train_runtime": 1.0}]}, ["/log_history/0"]),
        ({"log_history": [{"step": "1", "loss": 0.5}]}, ["/log_history/0"]),
        ({"log_history": []}, ["/log_history", "last_logged"]),
        ({"log_history": [{"step": 1, "loss": 0.5}]}, ["/log_history", "/log_history/0/a~1b", "last_logged"]),
        (
            {"log_history": [{"step": 1, "loss": 0.5, "a/b": 1}, {"step": 2, "loss": 0.75, "c": 0}]},
            ["/log_history/1/c", "/log_history/1/loss"],
        ),
        ({"log_history": [{"step": 1, "loss": 0.5, "a/b": 1}] * 2}, ["/log_history/1/a~1b", "/log_history/1/loss"]),
    ],
)
def test_a_trainer_state_that_the_run_contradicts(tmp_path: Path, state: dict[str, Any], pointers: list[str]) -> None:
    rows = [{"step": 1, "loss": 0.5, "a/b": 1.0}, {"step": 2, "loss": 0.25}]
    found = complete(tmp_path / "run", sft_document(), rows, **({"log_history": rows} | state))
    found = [
        (file, pointer) for file, pointer in found if file != "training-complete.json"
    ]  # as a log, it is too short
    assert {file for file, _ in found} <= {f"{LAST}/trainer_state.json"} | {
        f"{LAST}/counters-rank-{rank}.json" for rank in (0, 1)
    }
    told = [pointer.rpartition("/")[2] if "counters" in file else pointer for file, pointer in found]
    assert {*pointers} <= {*told}


def test_a_run_that_was_never_touched_has_no_fault_with_a_reference_either(run: Run) -> None:
    run.checkpoint(3, run.sample())
    assert finish(run) == 0
    found = verify_run(FolderTree(run.folder)).faults
    assert [(fault.file, fault.pointer) for fault in found if fault.gate == "checkpoints"] == []


def archive(*parts: tuple[str, bytes], compressed: bool = False) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as made:
        for name, data in parts:
            made.writestr(name, data)
    return written.getvalue()


WHOLE = archive(("optimizer/data.pkl", b"\x80\x02}."), ("optimizer/data/0", b"tensor" * 20))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (WHOLE, None),
        (b"", "not such an archive"),
        (b"\x80\x02}q\x00.", "not such an archive"),
        (WHOLE[:-40], "not such an archive"),
        (WHOLE.replace(b"tensortensor", b"tensorTensor", 1), 'an archive whose part "optimizer/data/0" is damaged'),
        (archive(("optimizer/data/0", b"x")), "an archive without data.pkl"),
        (archive(("optimizer/data.pkl", b"0" * 9_000_000), compressed=True), "an archive of compressed parts"),
    ],
    ids=["whole", "empty", "bare pickle", "cut off", "damaged", "no data", "compressed"],
)
def test_a_file_of_tensors_has_the_form_that_torch_gives_it(run: Run, data: bytes, found: str | None) -> None:
    folder = run.checkpoint(1, run.sample(range(1)))
    (folder / "optimizer.pt").write_bytes(data)
    faults = list(torch_file_faults(FolderTree(run.folder), "checkpoint-1", run.plan))
    assert [fault.file for fault in faults] == ([] if found is None else [str(folder / "optimizer.pt")])
    assert all(fault.found.startswith(found or "-") for fault in faults)


def test_what_was_sampled_is_counted_up_to_each_step() -> None:
    counted = SampledSteps()
    for step in (0, 1):
        for rank in (0, 1):
            for entry, _ in sampled(rank, step):
                even = entry.generation % 2 == 0
                total = 1.0 if even or step else 0.0
                cut = rank == 1 and step == 1 and not even
                counted.add(rank, row(entry, step, total=total, terminated=not cut, valid=not cut))
    # Two slots a rank, two generations each, of 5 and 6 tokens.
    assert counted.before(0) == StepCounts()
    assert counted.before(1) == StepCounts(tokens=44, terminated_tokens=44, longest=12)
    assert counted.before(2, rank=0) == StepCounts(tokens=44, terminated_tokens=44, longest=12, zero_variance_groups=2)
    assert counted.before(2) == StepCounts(
        tokens=88, terminated_tokens=76, longest=24, malformed=2, truncated=2, zero_variance_groups=4
    )


def test_a_group_without_a_terminated_completion_has_no_variance() -> None:
    counted = SampledSteps()
    for entry, _ in sampled(0, 0):
        counted.add(0, row(entry, 0, terminated=False, total=float(entry.generation)))
    assert counted.before(1).zero_variance_groups == 2
