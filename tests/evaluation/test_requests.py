"""Requests to the evaluation process: what they are named by, what crosses to the process, and what is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.evaluation import requests
from explicit_learning.evaluation.requests import (
    EvaluationIdentity,
    EvaluationRequest,
    answer_requests,
    evaluation_of_run,
)
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
from explicit_learning.rundir.events import GatesRecord, append_event
from tests.support.plans import PLAN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATHS = ResolvedPaths(model="/m", initial_adapter=None, dataset="/d", asset_root="/a", evaluation="/e", prompt="/p")
IDENTITY = EvaluationIdentity(
    run_id="run",
    arm="papo",
    which="final",
    adapter_sha256="a" * 64,
    model_snapshot_sha256="b" * 64,
    evaluation_manifest_sha256="c" * 64,
    prompt_sha256="d" * 64,
    max_completion_tokens=12,
    environment_lock_sha256="e" * 64,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with its plan; the plan file that it was started with lies beside it."""
    folder = tmp_path / "run"
    folder.mkdir()
    for path in (folder / "plan.json", tmp_path / "started.json"):
        path.write_text(json.dumps(PLAN))
    return folder


def refused(call: Callable[[], object]) -> Fault:
    with pytest.raises(Refusal) as refusal:
        call()
    (fault,) = refusal.value.faults
    return fault


def test_the_name_of_an_evaluation_never_changes() -> None:
    # Evaluations of earlier versions lie under this name, and are not made again.
    assert IDENTITY.name == "4d4ee240d907942a"


@pytest.mark.parametrize("label", [{"run_id": "other"}, {"arm": "evi_po"}, {"which": "initial"}])
def test_labels_do_not_change_the_name(label: dict[str, str]) -> None:
    assert replace(IDENTITY, **label).name == IDENTITY.name  # type: ignore[arg-type] # fields by name


@pytest.mark.parametrize(
    "change", [{"adapter_sha256": None}, {"prompt_sha256": "0" * 64}, {"max_completion_tokens": 13}]
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
    append_event(
        run, "gates", GatesRecord(launch_id="n", hardware={}, image={}, plan_file=str(run.parent / "started.json"))
    )
    fault = refused(lambda: evaluation_of_run(run, "final"))
    assert (fault.found, fault.expected) == ("a run without training-complete.json", "a completed run")
    request = evaluation_of_run(run, "base")
    assert checked == [(run.parent / "started.json", PLAN["frozen_config_sha256"])] * 2
    assert (request.label, request.adapter) == ("run (base)", None)
    assert request.out == str(run / "evaluations" / request.identity.name / "evaluation.json")
    assert request.identity.prompt_sha256 == PLAN["prompt"]["sha256"]


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    fault = refused(lambda: evaluation_of_run(tmp_path, "final"))
    assert (fault.found, fault.exit_code) == ("a folder without plan.json", ExitCode.USAGE)


def test_a_run_whose_plan_file_is_not_found(run: Path) -> None:
    append_event(run, "nodes", {})
    fault = refused(lambda: evaluation_of_run(run, "final"))
    assert (fault.file, fault.found) == (str(run), "no event names a plan file")
    missing, started = run.parent / "missing.json", run.parent / "started.json"
    append_event(run, "gates", GatesRecord(launch_id="n", hardware={}, image={}, plan_file=str(missing)))
    assert refused(lambda: evaluation_of_run(run, "final")).found == f"the plan file {missing} does not exist"
    append_event(run, "gates", GatesRecord(launch_id="n", hardware={}, image={}, plan_file=str(started)))
    started.write_text(json.dumps(PLAN, indent=1))
    fault = refused(lambda: evaluation_of_run(run, "final"))
    assert (fault.file, fault.found) == (str(started), "a file that differs from the run's plan.json")
    assert fault.fix == "name the plan that the run was started with: --plan PLAN"


@pytest.mark.parametrize(("code", "expected"), [(74, ExitCode.IO), (3, ExitCode.INTERNAL)])
def test_an_evaluation_process_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: ExitCode
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    out = tmp_path / "evaluation.json"
    request = EvaluationRequest(
        label="run (base)", plan=from_json(Plan, PLAN), paths=PATHS, adapter=None, out=str(out), identity=IDENTITY
    )
    fault = refused(lambda: answer_requests([request]))
    assert (fault.file, fault.exit_code) == (str(out), expected)
    assert fault.found == f"the evaluation process ended with exit code {code}"
    out.write_text('{"rows": 3}')  # what is there is not made again
    assert answer_requests([request]) == [{"rows": 3}]
