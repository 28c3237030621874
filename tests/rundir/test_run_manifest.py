"""The run manifest's hash and its state machine."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.atomic import write_json
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.schema import validate
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.run_manifest import (
    CompletionRecord,
    RunManifest,
    amend_completed,
    create_run_manifest,
    read_run_manifest,
    set_status,
    write_run_manifest,
)
from tests.support.finished_run import COMMIT, plan_document, sft_document

if TYPE_CHECKING:
    from pathlib import Path

STATUSES = ("planned", "running", "completed", "failed", "stopped", "budget_exhausted")
LEGAL = {
    ("planned", "running"),
    ("running", "running"),
    ("running", "completed"),
    ("running", "failed"),
    ("running", "stopped"),
    ("running", "budget_exhausted"),
    ("failed", "running"),
    ("stopped", "running"),
}


def planned(**changes: Any) -> RunManifest:
    plan = from_json(Plan, plan_document(**changes))
    return create_run_manifest(plan, plan_sha256="9" * 64)


@pytest.mark.parametrize("plan", [plan_document(), sft_document()])
def test_a_planned_run_fits_the_schema_and_names_every_input(plan: dict[str, Any]) -> None:
    manifest = create_run_manifest(from_json(Plan, plan), plan_sha256="9" * 64)
    document = to_json(manifest)
    assert validate(document, "run-manifest", gate="test", file="run-manifest.json") == []
    assert (manifest.status, manifest.trained, manifest.completion) == ("planned", False, None)
    assert manifest.run_manifest_sha256 == sha256_json(document["frozen"])
    assert document["frozen"]["identities"] == {
        "dataset_sha256": "3" * 64,
        "dataset_manifest_sha256": "4" * 64,
        "slot_manifest_sha256": plan["data"]["slot_manifest_sha256"],
        "evaluation_manifest_sha256": "6" * 64,
        "prompt_sha256": "7" * 64,
        "environment_lock_sha256": "8" * 64,
        "base_model": {"revision": None, "snapshot_sha256": "1" * 64},
        "initial_adapter_sha256": None if plan["initial_adapter"] is None else "2" * 64,
    }


@pytest.mark.parametrize(("current", "status"), [*itertools.product(STATUSES, STATUSES)])
def test_transitions(tmp_path: Path, current: Any, status: Any) -> None:
    write_run_manifest(tmp_path, replace(planned(), status=current))
    before = (tmp_path / "run-manifest.json").read_bytes()
    if (current, status) in LEGAL:
        assert set_status(tmp_path, status).status == status
        assert read_run_manifest(tmp_path).status == status
        assert read_run_manifest(tmp_path).run_manifest_sha256 == json.loads(before)["run_manifest_sha256"]
    else:
        with pytest.raises(Refusal) as refusal:
            set_status(tmp_path, status)
        assert refusal.value.exit_code == ExitCode.OUTPUT
        assert (tmp_path / "run-manifest.json").read_bytes() == before


@pytest.mark.parametrize(("mode", "trained"), [("main", True), ("smoke", False)])
def test_only_a_main_run_is_trained(tmp_path: Path, mode: str, trained: bool) -> None:
    manifest = replace(planned(run_mode=mode), status="running")
    write_run_manifest(tmp_path, manifest)
    amend_completed(tmp_path, optimizer_steps=3, running_commit=COMMIT, running_dirty=True, marker_sha256="e" * 64)
    amended = read_run_manifest(tmp_path)
    assert (amended.status, amended.trained) == ("completed", trained)
    assert amended.completion == CompletionRecord(
        optimizer_steps=3,
        running_commit=COMMIT,
        running_dirty=True,
        frozen_commit="3f" * 20,
        run_manifest_sha256=manifest.run_manifest_sha256,
        frozen_config_sha256=manifest.frozen.frozen_config_sha256,
        completion_marker_sha256="e" * 64,
    )
    assert to_json(amended.frozen) == to_json(manifest.frozen)


def test_an_edited_frozen_part_is_refused(tmp_path: Path) -> None:
    manifest = planned()
    write_run_manifest(tmp_path, replace(manifest, frozen=replace(manifest.frozen, seed=manifest.frozen.seed + 1)))
    with pytest.raises(Refusal, match="run_manifest_sha256"):
        read_run_manifest(tmp_path)


def test_an_unknown_status_is_refused(tmp_path: Path) -> None:
    document = to_json(planned()) | {"status": "done"}
    with pytest.raises(Refusal, match="/status") as refusal:
        write_run_manifest(tmp_path, from_json(RunManifest, document))
    assert refusal.value.exit_code == ExitCode.INTERNAL
    write_json(tmp_path / "run-manifest.json", document)
    with pytest.raises(Refusal, match="/status") as refusal:
        read_run_manifest(tmp_path)
    assert refusal.value.exit_code == ExitCode.CONTRACT


def test_the_hash_of_the_golden_example_is_the_hash_of_its_frozen_part() -> None:
    document = json.loads((SCHEMAS / "examples" / "run-manifest.json").read_text())
    assert sha256_json(to_json(from_json(RunManifest, document).frozen)) == document["run_manifest_sha256"]
