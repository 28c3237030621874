"""What a smoke run records about its interruption is held against its other files, whatever was forged in it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import Context, FaultCollector
from explicit_learning.experiment.smoke_outputs import compare_outputs
from explicit_learning.files.tree import FolderTree, hash_tree
from explicit_learning.rundir.output_comparison import write_comparison
from explicit_learning.rundir.state_digests import StateDigests, write_state_digests
from explicit_learning.verify.interruptions import interruption_faults
from explicit_learning.verify.record import read_record
from tests.support.finished_run import plan_document, sft_document
from tests.support.smoke_run import COMPONENTS, SMOKE, complete_smoke_run, uninterrupted_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.errors import Fault

    Change = Callable[[Any], object]

BOUNDARY, COMPARISON = "smoke-resume-boundary.json", "smoke-output-comparison.json"
AUDIT, LAST_LAUNCH = "resume-audits/checkpoint-5-launch-2.json", "launches/launch-2.json"
OTHER = "9" * 64


def compared(folder: Path, document: dict[str, Any]) -> Path:
    """Return a smoke run that was compared with the uninterrupted run in it."""
    run = complete_smoke_run(folder, document)
    uninterrupted_run(run)
    for rank in (0, 1):
        write_state_digests(folder / "checkpoint-5", StateDigests(rank=rank, step=5, components=COMPONENTS))
    write_comparison(folder, compare_outputs(folder, run.plan))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compared(tmp_path_factory.mktemp("compared") / "run", plan_document(**SMOKE))


@pytest.fixture
def smoke(tmp_path: Path, finished: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "copy")


def edit(file: Path, change: Change) -> None:
    value = json.loads(file.read_bytes())
    change(value)
    file.write_text(json.dumps(value))


def faults_of(folder: Path) -> list[Fault]:
    """Return what is wrong about a run's interruption."""
    tree = FolderTree(folder)
    hashes, errors = hash_tree(tree, list(tree.files))
    assert errors == {}
    return list(interruption_faults(tree, read_record(tree, FaultCollector(Context(gate="record"))), hashes))


def found(folder: Path, file: str) -> set[str | None]:
    """Return the pointers of a file's faults."""
    return {fault.pointer for fault in faults_of(folder) if fault.file == str(folder / file)}


@pytest.mark.parametrize("kept", [True, False], ids=["with the uninterrupted run", "without it"])
@pytest.mark.parametrize("document", [plan_document(**SMOKE), sft_document(**SMOKE)], ids=["rl", "sft"])
def test_a_good_smoke_run_has_no_fault(tmp_path: Path, document: dict[str, Any], kept: bool) -> None:
    folder = compared(tmp_path / "run", document)
    if not kept:
        shutil.rmtree(folder / "uninterrupted")
        shutil.rmtree(folder / "checkpoint-5")
    assert faults_of(folder) == []


def test_outputs_that_no_step_has_are_found_though_both_runs_are_said_to_have_them(smoke: Path) -> None:
    def forge(value: Any) -> None:
        for step in value["steps"]:
            for kind in ("trace", "metrics"):
                step[kind] = {"resumed": OTHER, "uninterrupted": OTHER}

    edit(smoke / COMPARISON, forge)
    assert found(smoke, COMPARISON) == {f"/steps/{n}/{kind}/resumed" for n in range(6) for kind in ("trace", "metrics")}


@pytest.mark.parametrize("file", ["accounting/rank-1/trace.jsonl", "metrics.jsonl"])
def test_a_digest_follows_the_file_that_was_changed(smoke: Path, file: str) -> None:
    lines = (smoke / file).read_text().splitlines()
    row = json.loads(lines[-1])  # of step 6
    row |= {"loss": 9.0} if file == "metrics.jsonl" else {"completion_text": "<answer>9</answer>"}
    (smoke / file).write_text("\n".join([*lines[:-1], json.dumps(row)]) + "\n")
    kind = "metrics" if file == "metrics.jsonl" else "trace"
    assert found(smoke, COMPARISON) == {f"/steps/5/{kind}/resumed"}


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: steps.pop(),
        lambda steps: steps.reverse(),
        lambda steps: steps.append(steps[0]),
    ],
    ids=["too few", "another order", "twice"],
)
def test_compared_steps_are_those_that_are_planned(smoke: Path, change: Change) -> None:
    edit(smoke / COMPARISON, lambda value: change(value["steps"]))
    assert "/steps" in found(smoke, COMPARISON)


COMPARISON_FIELDS = {
    "run_id": "other",
    "frozen_config_sha256": OTHER,
    "run_manifest_sha256": OTHER,
    "completion_marker_sha256": OTHER,
    "determinism": "seeded",
    "resumed_at": "checkpoint-4",
    "uninterrupted_launch_id": "launch-9",
}


@pytest.mark.parametrize(("field", "value"), COMPARISON_FIELDS.items())
def test_a_comparison_is_the_runs_own(smoke: Path, field: str, value: str) -> None:
    edit(smoke / COMPARISON, lambda document: document.update({field: value}))
    assert found(smoke, COMPARISON) == {f"/{field}"}


def test_the_compared_launch_is_not_looked_for_in_a_folder_that_was_removed(smoke: Path) -> None:
    shutil.rmtree(smoke / "uninterrupted")
    edit(smoke / COMPARISON, lambda document: document.update(uninterrupted_launch_id="launch-9"))
    assert faults_of(smoke) == []
    edit(smoke / COMPARISON, lambda document: document.update(uninterrupted_launch_id="launch-2"))
    assert found(smoke, COMPARISON) == {"/uninterrupted_launch_id"}


DIFFERENCE = {"file": "metrics.jsonl", "field": "loss", "resumed": "1", "uninterrupted": "2"}
CHANGE = {"pointer": "/nodes/0/platform/libraries/torch", "before": "2", "now": "2"}


@pytest.mark.parametrize(
    ("change", "pointers"),
    [
        (lambda value: value.update(first_difference={"step": 2, **DIFFERENCE}), {"/first_difference/step"}),
        (lambda value: value.update(equal=False), {"/equal"}),
        (
            lambda value: value["steps"][3]["metrics"].update(uninterrupted=OTHER),
            {"/equal", "/first_difference/step"},
        ),
        (
            lambda value: value["final_adapter_tensors"].update(resumed=OTHER, uninterrupted=OTHER),
            {"/final_adapter_tensors/resumed"},
        ),
        (
            lambda value: value["final_adapter_tensors"].update(uninterrupted=OTHER),
            {"/equal", "/first_difference/step"},
        ),
        (lambda value: value.update(accepted_changes=[CHANGE]), {"/accepted_changes/0"}),
    ],
    ids=["difference", "equal", "digest", "adapter", "another adapter", "no change"],
)
def test_a_comparison_agrees_with_itself(smoke: Path, change: Change, pointers: set[str]) -> None:
    edit(smoke / COMPARISON, change)
    assert found(smoke, COMPARISON) == pointers


BOUNDARY_FIELDS = {
    "run_id": "other",
    "launch_id": "launch-2",
    "frozen_config_sha256": OTHER,
    "run_manifest_sha256": OTHER,
    "plan_sha256": OTHER,
    "checkpoint": "checkpoint-4",
}


@pytest.mark.parametrize(("field", "value"), BOUNDARY_FIELDS.items())
def test_a_boundary_is_the_runs_own(smoke: Path, field: str, value: str) -> None:
    edit(smoke / BOUNDARY, lambda document: document.update({field: value}))
    assert found(smoke, BOUNDARY) == {f"/{field}"}
    assert found(smoke, AUDIT) == {"/boundary/file_sha256"}


@pytest.mark.parametrize("component", [name for name, value in COMPONENTS.items() if value])
def test_a_boundary_has_the_state_of_its_checkpoint(smoke: Path, component: str) -> None:
    edit(smoke / BOUNDARY, lambda document: document["ranks"][1]["components"].update({component: OTHER}))
    assert found(smoke, BOUNDARY) == {"/ranks/1/components"}


def test_a_boundary_has_all_ranks(smoke: Path) -> None:
    edit(smoke / BOUNDARY, lambda document: document["ranks"].pop())
    assert found(smoke, BOUNDARY) == {"/ranks"}


def test_processes_that_wrote_the_boundary_cannot_resume_it(smoke: Path) -> None:
    names = [rank["process_nonce"] for rank in json.loads((smoke / AUDIT).read_bytes())["ranks"]]

    def forge(document: Any) -> None:
        for rank, name in zip(document["ranks"], names, strict=True):
            rank["process_nonce"] = name

    edit(smoke / BOUNDARY, forge)
    pointers = {"/boundary/file_sha256", "/boundary/process_nonces", "/boundary/distinct_processes"}
    assert found(smoke, AUDIT) == pointers
    edit(smoke / AUDIT, lambda document: document["boundary"].update(process_nonces=names))
    assert found(smoke, AUDIT) == pointers - {"/boundary/process_nonces"}


@pytest.mark.parametrize(
    ("change", "pointers"),
    [
        (lambda audit: audit["ranks"][0].update(loaders_called=[]), {"/ranks/0/loaders_missing"}),
        (lambda audit: audit["ranks"][1]["loaders_called"].remove("optimizer"), {"/ranks/1/loaders_missing"}),
        (lambda audit: audit["ranks"][1]["components"][0].update(as_loaded=OTHER), {"/ranks/1/components"}),
        (
            lambda audit: audit["ranks"][1]["components"][0].update(at_checkpoint=OTHER, as_loaded=OTHER),
            {"/ranks/1/components"},
        ),
        (lambda audit: audit.update(checkpoint="checkpoint-4"), {"", "/step", "/checkpoint"}),
    ],
    ids=["loaders", "one loader", "as loaded", "both digests", "checkpoint"],
)
def test_what_an_audit_concludes_follows_from_what_it_found(smoke: Path, change: Change, pointers: set[str]) -> None:
    edit(smoke / AUDIT, change)
    assert found(smoke, AUDIT) >= pointers


@pytest.mark.parametrize(
    "change",
    [
        lambda audit: audit.update(boundary=None),
        lambda audit: audit.update(passed=False),
        lambda audit: audit["ranks"].pop(),
        lambda audit: audit["ranks"].reverse(),
    ],
    ids=["without the boundary", "failed", "a rank less", "another order"],
)
def test_an_audit_that_proves_less_than_completion_asks_for_is_found(smoke: Path, change: Change) -> None:
    edit(smoke / AUDIT, change)
    assert "/resume_audits" in found(smoke, LAST_LAUNCH)
