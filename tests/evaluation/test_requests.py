"""Which evaluation a request asks for: what it is named by, and what of a run or of a place is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.evaluation import requests
from explicit_learning.evaluation.requests import EvaluationRequest, evaluation_of_run
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.lock import lock_sha256
from explicit_learning.lock.installed import lock_of_new_plan
from explicit_learning.model_files.folders import adapter_sha256
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
from explicit_learning.rundir.events import GatesRecord, append_event
from tests.support.evaluation_requests import IDENTITY, PATHS, refused
from tests.support.plans import PLAN, plan_with

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.evaluation.requests import Which
    from explicit_learning.plan.typed_plan import EvaluationEngine


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with its plan; the plan file that it was started with lies beside it."""
    folder = tmp_path / "run"
    folder.mkdir()
    for path in (folder / "plan.json", tmp_path / "started.json"):
        path.write_text(json.dumps(PLAN))
    return folder


def test_the_name_of_an_evaluation_never_changes() -> None:
    # Evaluations of this form lie under this name, and are not made again.
    assert IDENTITY.name == "bdc868ae44acb364"


@pytest.mark.parametrize(
    "label",
    [
        {"run_id": "other"},
        {"arm": "evi_po"},
        {"which": "initial"},
        {"rows_from": "other"},
        {"frozen_config_sha256": "0" * 64},
        {"completion_marker_sha256": None},
    ],
)
def test_labels_do_not_change_the_name(label: dict[str, str]) -> None:
    assert replace(IDENTITY, **label).name == IDENTITY.name  # type: ignore[arg-type] # fields by name


@pytest.mark.parametrize(
    "change",
    [
        {"adapter_sha256": None},
        {"prompt_sha256": "0" * 64},
        {"max_completion_tokens": 13},
        {"limit": 3},
        {"batch_size": 32},
        {"dtype": "bfloat16"},
        {"determinism": "seeded"},
        {"engine": "vllm"},
        {"environment_lock_sha256": "0" * 64},
        {"evaluation_lock_sha256": "0" * 64},
    ],
)
def test_everything_else_does(change: dict[str, object]) -> None:
    assert replace(IDENTITY, **change).name != IDENTITY.name  # type: ignore[arg-type] # fields by name


def test_a_request_crosses_to_the_process_unchanged() -> None:
    plan = from_json(Plan, PLAN)
    request = EvaluationRequest(
        label="run (final)", plan=plan, paths=PATHS, adapter="/adapter", out="/out.json", identity=IDENTITY
    )
    assert from_json(EvaluationRequest, json.loads(json.dumps(to_json(request)))) == request


def test_a_request_of_a_completed_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[Path, str]] = []

    def frozen_paths(path: Path, *, expected: str, known: set[str] | None = None) -> ResolvedPaths:
        assert known is None
        checked.append((path, expected))
        return PATHS

    monkeypatch.setattr(requests, "frozen_paths", frozen_paths)
    append_event(run, "gates", GatesRecord(launch_id="n", plan_file=str(run.parent / "started.json")))
    fault = refused(lambda: evaluation_of_run(run, "final"))
    assert (fault.found, fault.expected) == ("a run without training-complete.json", "a completed run")
    request = evaluation_of_run(run, "base")
    assert checked == [(run.parent / "started.json", PLAN["frozen_config_sha256"])] * 2
    assert (request.label, request.adapter) == ("run (base)", None)
    assert request.out == str(run / "evaluations" / request.identity.name / "evaluation.json")
    assert request.identity.prompt_sha256 == PLAN["prompt"]["sha256"]
    assert request.identity.environment_lock_sha256 == PLAN["environment_lock_sha256"]
    # What is installed is this environment's, whatever lock the plan names: here one that nobody ships.
    assert request.identity.evaluation_lock_sha256 == lock_sha256(lock_of_new_plan(PLAN["hardware"]["accelerator"]))


@pytest.mark.parametrize("planned", ["exact", "vllm"])
@pytest.mark.parametrize("asked", [None, "exact", "vllm"])
def test_the_engine_is_the_plans_unless_another_is_asked_for(
    run: Path, monkeypatch: pytest.MonkeyPatch, planned: str, asked: EvaluationEngine | None
) -> None:
    plan = plan_with({"/generation/evaluation_engine": planned})
    for path in (run / "plan.json", run.parent / "started.json"):
        path.write_text(json.dumps(plan))
    monkeypatch.setattr(requests, "frozen_paths", lambda *_, **__: PATHS)
    request = evaluation_of_run(run, "base", engine=asked, plan_file=run.parent / "started.json")
    assert request.identity.engine == (asked or planned)


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    fault = refused(lambda: evaluation_of_run(tmp_path, "final"))
    assert (fault.found, fault.exit_code) == ("a folder without plan.json", ExitCode.USAGE)


def test_a_run_whose_plan_file_is_not_found(run: Path) -> None:
    append_event(run, "resume", {})
    fault = refused(lambda: evaluation_of_run(run, "final"))
    assert (fault.file, fault.found) == (str(run), "no event names a plan file")
    missing, started = run.parent / "missing.json", run.parent / "started.json"
    append_event(run, "gates", GatesRecord(launch_id="n", plan_file=str(missing)))
    assert refused(lambda: evaluation_of_run(run, "final")).found == f"the plan file {missing} does not exist"
    append_event(run, "gates", GatesRecord(launch_id="n", plan_file=str(started)))
    started.write_text(json.dumps(PLAN, indent=1))
    fault = refused(lambda: evaluation_of_run(run, "final"))
    assert (fault.file, fault.found) == (str(started), "a file that differs from the run's plan.json")
    assert fault.fix == "name the plan that the run was started with: --plan PLAN"


def test_an_evaluation_can_be_written_elsewhere(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "frozen_paths", lambda *_, **__: PATHS)
    request = evaluation_of_run(run, "base", plan_file=run.parent / "started.json", out=tmp_path / "elsewhere")
    assert request.out == str(tmp_path / "elsewhere" / request.identity.name / "evaluation.json")


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("model/evaluations", "a place inside the model"),
        ("assets", "the asset root"),
        ("prompt.txt", "a place inside the prompt"),
        ("run/final-adapter", "a place inside the run"),
        ("run", "a place inside the run"),
    ],
)
def test_an_evaluation_is_not_written_into_an_input_or_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, found: str
) -> None:
    paths = replace(PATHS, model=str(tmp_path / "model"), asset_root=str(tmp_path / "assets"))
    paths = replace(paths, prompt=str(tmp_path / "prompt.txt"))
    monkeypatch.setattr(requests, "frozen_paths", lambda *_, **__: paths)
    fault = refused(lambda: evaluation_of_run(run, "base", plan_file=run.parent / "started.json", out=tmp_path / place))
    assert found in fault.found
    assert (fault.exit_code, fault.fix) == (ExitCode.OUTPUT, "choose another place (--out)")
    evaluation_of_run(run, "base", plan_file=run.parent / "started.json", out=run / "evaluations" / "mine")


FILES = ("adapter_config.json", "adapter_model.safetensors")


def write_adapter(folder: Path) -> dict[str, str]:
    """Write an adapter's files, whose contents nobody reads here, and return their hashes."""
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(f"{folder.name}/{name}")
    return {name: sha256_file(folder / name) for name in FILES}


def write_marker(run: Path, adapter: dict[str, str], **changes: object) -> None:
    marker = json.loads((SCHEMAS / "examples" / "completion-marker.json").read_text())
    marker["identities"]["frozen_config_sha256"] = PLAN["frozen_config_sha256"]
    marker["adapter"]["files"].update(adapter)
    (run / "training-complete.json").write_text(json.dumps(marker | changes))


@pytest.fixture
def best(run: Path) -> Path:
    """The best checkpoint of the run, which is complete and was validated."""
    folder = run / "checkpoint-5"
    mark = json.loads((SCHEMAS / "examples" / "checkpoint-mark.json").read_text())
    for name, sha256 in write_adapter(folder).items():
        mark["files"][name] = {"bytes": (folder / name).stat().st_size, "sha256": sha256}
    (folder / "complete.json").write_text(json.dumps(mark))
    chosen = {"checkpoint": folder.name, "step": 5, "right_ratio": 0.5}
    validation = {"groups": 2, "questions": 8, "best": chosen}
    write_marker(run, write_adapter(run / "final-adapter"), validation=validation)
    return folder


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("which", ["final", "best"])
def test_an_adapter_that_is_not_the_recorded_one_is_refused(
    run: Path, best: Path, monkeypatch: pytest.MonkeyPatch, which: Which, name: str
) -> None:
    monkeypatch.setattr(requests, "frozen_paths", lambda *_, **__: PATHS)
    folder = best if which == "best" else run / "final-adapter"

    def request() -> EvaluationRequest:
        return evaluation_of_run(run, which, plan_file=run.parent / "started.json")

    assert request().adapter == str(folder)
    assert request().identity.adapter_sha256 == adapter_sha256(folder)
    assert request().identity.completion_marker_sha256 == sha256_file(run / "training-complete.json")
    (folder / name).write_text("another one")
    fault = refused(request)
    assert (fault.file, fault.found) == (str(folder / name), sha256_file(folder / name))
    (folder / name).unlink()
    assert refused(request).found == "no such file"


def test_a_run_that_was_not_validated_has_no_best_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "frozen_paths", lambda *_, **__: PATHS)
    write_marker(run, write_adapter(run / "final-adapter"), validation=None)
    fault = refused(lambda: evaluation_of_run(run, "best", plan_file=run.parent / "started.json"))
    assert (fault.pointer, fault.exit_code) == ("--which", ExitCode.USAGE)
    assert fault.found == "best, and a run that was not validated while it trained"
