"""Files in a run directory that no run wrote: each is refused by name, and nothing is used or changed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from explicit_learning.accounting.binding import Binding, Kind, log_file
from explicit_learning.accounting.ledger import Ledger
from explicit_learning.accounting.trace import Trace
from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.files.hashing import sha256_file, snapshot
from explicit_learning.rundir.checkpoint_mark import read_mark
from explicit_learning.rundir.counters import load_counters
from explicit_learning.training.state.random_streams import load_random_streams, save_random_streams
from explicit_learning.training.state.tensor_files import load_tensors
from tests.support.finished_run import Run, plan_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.accounting.frontier import RankFrontiers


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that was killed after step 2, with checkpoints of both steps."""
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    first = run.sample(range(1))
    run.checkpoint(1, first)
    second = run.sample(range(1, 2), frontiers=first)
    folder = run.checkpoint(2, second, seal=False)
    torch.save({"state": {}, "param_groups": []}, folder / "optimizer.pt")
    for rank in (0, 1):
        save_random_streams(folder, rank)
    reseal(run, folder, 2)
    return run


def reseal(run: Run, folder: Path, step: int) -> None:
    """Seal a folder again, as a careful forger would."""
    from explicit_learning.rundir.checkpoint_mark import seal_checkpoint

    assert run.preparation is not None
    seal_checkpoint(folder, run.plan, step=step, run_manifest_sha256=run.preparation.run_manifest_sha256)


def open_as_ranks_do(run: Run, frontiers: tuple[RankFrontiers, ...], kind: Kind) -> None:
    for part in frontiers:
        binding = Binding.of(run.plan, part.rank)
        if kind == "ledger":
            Ledger.open(run.folder, binding, part.ledger).close()
        else:
            Trace.open(run.folder, binding, part.trace, arm=run.plan.arm, running_commit="0" * 40).close()


def refused(call: Callable[[], Any], run: Run) -> list[Fault]:
    before = snapshot(run.folder)
    with pytest.raises(Refusal) as refusal:
        call()
    assert refusal.value.exit_code == ExitCode.CONTRACT
    changed = {name for name, sha256 in snapshot(run.folder).items() if before.get(name) != sha256}
    assert changed <= {"events.jsonl"}
    return list(refusal.value.faults)


def the_file(run: Run, fault: Fault) -> str:
    return (fault.file or "").removeprefix(f"{run.folder}/")


@pytest.mark.parametrize("kind", ["ledger", "trace"])
def test_accounting_of_another_run_is_refused(run: Run, tmp_path: Path, kind: Kind) -> None:
    other = Run.of(tmp_path / "other", plan_document(run_id="other-run"))
    other.prepare()
    other.sample(range(2))
    shutil.copy(other.folder / log_file(kind, 1), run.folder / log_file(kind, 1))
    faults = refused(lambda: open_as_ranks_do(run, read_mark(run.folder / "checkpoint-2").frontiers, kind), run)
    found = {str(fault.pointer): (the_file(run, fault), fault.found) for fault in faults}
    assert found["/run_id"] == (f"{log_file(kind, 1)}:1", '"other-run"')


@pytest.mark.parametrize("kind", ["ledger", "trace"])
def test_an_edited_count_is_refused(run: Run, kind: Kind) -> None:
    path = run.folder / log_file(kind, 1)
    path.write_bytes(path.read_bytes().replace(b'"token_count":5', b'"token_count":4', 1))
    (fault,) = refused(lambda: open_as_ranks_do(run, read_mark(run.folder / "checkpoint-2").frontiers, kind), run)
    assert (the_file(run, fault), fault.pointer) == (log_file(kind, 1), "/digest")


@pytest.mark.parametrize("kind", ["ledger", "trace"])
def test_missing_rows_are_refused(run: Run, kind: Kind) -> None:
    path = run.folder / log_file(kind, 0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], *lines[5:]]))
    (fault,) = refused(lambda: open_as_ranks_do(run, read_mark(run.folder / "checkpoint-2").frontiers, kind), run)
    assert (the_file(run, fault), fault.pointer) == (log_file(kind, 0), "/offset")
    path.unlink()
    (fault,) = refused(lambda: open_as_ranks_do(run, read_mark(run.folder / "checkpoint-2").frontiers, kind), run)
    assert (the_file(run, fault), fault.found) == (log_file(kind, 0), "no such file")


def test_the_frontier_of_another_step_is_refused(run: Run) -> None:
    folder = run.folder / "checkpoint-2"
    shutil.copy(run.folder / "checkpoint-1" / "accounting" / "rank-1.json", folder / "accounting" / "rank-1.json")
    (fault,) = refused(run.prepare, run)
    assert the_file(run, fault) == "checkpoint-2/accounting/rank-1.json"
    reseal(run, folder, 2)  # now every hash fits, and only the step shows it
    faults = refused(run.prepare, run)
    assert [(fault.pointer, fault.found, fault.expected) for fault in faults] == [
        (f"/frontiers/1/{kind}/rows", "4 completions", "8 on a rank after step 2") for kind in ("ledger", "trace")
    ]


def test_the_mark_of_another_step_is_refused(run: Run) -> None:
    shutil.copy(run.folder / "checkpoint-1" / "complete.json", run.folder / "checkpoint-2" / "complete.json")
    found = {str(fault.pointer): fault.found for fault in refused(run.prepare, run)}
    assert found["/step"] == "a checkpoint whose mark says checkpoint-1"


@pytest.mark.parametrize(
    ("changes", "pointers"),
    [
        ({"hardware__world_size": 1}, {"/world_size", "/frozen_config_sha256", "/run_manifest_sha256"}),
        ({"seed": 5}, {"/frozen_config_sha256", "/run_manifest_sha256"}),
    ],
    ids=["another number of ranks", "another plan"],
)
def test_a_checkpoint_of_another_run_is_refused(
    run: Run, tmp_path: Path, changes: dict[str, Any], pointers: set[str]
) -> None:
    other = Run.of(tmp_path / "other", plan_document(**changes))
    other.prepare()
    frontiers = other.sample(range(2))
    stranger = other.checkpoint(2, frontiers)
    shutil.rmtree(run.folder / "checkpoint-2")
    shutil.copytree(stranger, run.folder / "checkpoint-2")
    faults = refused(run.prepare, run)
    assert pointers <= {str(fault.pointer) for fault in faults}
    assert {the_file(run, fault) for fault in faults} == {"checkpoint-2/complete.json"}


class Payload:
    """Runs a command when it is unpickled the usual way."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("form", ["torch", "bare pickle"])
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "random-streams-rank-0.pt"])
def test_a_pickle_that_would_run_code_is_refused(run: Run, tmp_path: Path, form: str, name: str) -> None:
    folder, target = run.folder / "checkpoint-2", tmp_path / "code-ran"
    if form == "torch":
        torch.save({"state": Payload(target)}, folder / name)
    else:
        (folder / name).write_bytes(pickle.dumps(Payload(target), protocol=2))
    assert [the_file(run, fault) for fault in refused(run.prepare, run)] == [f"checkpoint-2/{name}"]
    reseal(run, folder, 2)  # the mark fits now, so that only the loader can refuse it
    assert run.prepare().checkpoint == "checkpoint-2"
    (fault,) = refused(lambda: load_tensors(folder / name), run)
    assert the_file(run, fault) == f"checkpoint-2/{name}"
    assert fault.found == "cannot be loaded: loading it would call posix.system"
    assert not target.exists()


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_truncated_optimizer_file_is_refused(run: Run, kept: int) -> None:
    folder = run.folder / "checkpoint-2"
    path = folder / "optimizer.pt"
    path.write_bytes(path.read_bytes()[:kept])
    size = path.stat().st_size
    (fault,) = refused(run.prepare, run)
    assert (the_file(run, fault), fault.found) == ("checkpoint-2/optimizer.pt", f"{size:,} bytes")
    reseal(run, folder, 2)
    (fault,) = refused(lambda: load_tensors(path), run)
    assert the_file(run, fault) == "checkpoint-2/optimizer.pt"


def test_a_missing_file_of_random_streams_is_refused(run: Run) -> None:
    folder = run.folder / "checkpoint-2"
    (folder / "random-streams-rank-1.pt").unlink()
    (fault,) = refused(run.prepare, run)
    assert (the_file(run, fault), fault.found) == ("checkpoint-2/random-streams-rank-1.pt", "no such file")
    with pytest.raises(Refusal, match="a file that training writes into every checkpoint"):
        reseal(run, folder, 2)
    (fault,) = refused(lambda: load_random_streams(folder, 1), run)
    assert the_file(run, fault) == "checkpoint-2/random-streams-rank-1.pt"
    assert fault.found == "cannot be loaded: No such file or directory"


def test_a_missing_file_of_counters_is_refused(run: Run) -> None:
    (run.folder / "checkpoint-2/counters-rank-0.json").unlink()
    (fault,) = refused(lambda: load_counters(run.folder / "checkpoint-2", 0), run)
    assert the_file(run, fault) == "checkpoint-2/counters-rank-0.json"


def test_training_arguments_are_never_loaded(run: Run, tmp_path: Path) -> None:
    """Trainer leaves its pickled arguments in checkpoints; a file that no mark lists is refused."""
    folder, target = run.folder / "checkpoint-2", tmp_path / "code-ran"
    (folder / "training_args.bin").write_bytes(pickle.dumps(Payload(target), protocol=2))
    (fault,) = refused(run.prepare, run)
    assert the_file(run, fault) == "checkpoint-2/training_args.bin"
    assert not target.exists()


def test_a_mark_whose_hashes_were_recomputed_still_names_its_run(run: Run) -> None:
    path = run.folder / "checkpoint-2" / "complete.json"
    document = json.loads(path.read_text())
    document["run_id"] = "other-run"
    path.write_text(json.dumps(document))
    assert [fault.pointer for fault in refused(run.prepare, run)] == ["/run_id"]
    assert document["files"]["optimizer.pt"]["sha256"] == sha256_file(run.folder / "checkpoint-2" / "optimizer.pt")
