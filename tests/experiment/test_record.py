"""An experiment continues in its own folder, and in no other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.experiment.document import Experiment, narrow, read_experiment
from explicit_learning.experiment.record import RECORD_NAME, claim_folder
from explicit_learning.files.atomic import TEMPORARY_PREFIX
from explicit_learning.files.resources import PLANS
from explicit_learning.files.schema import validate

if TYPE_CHECKING:
    from pathlib import Path

DEMO = read_experiment(PLANS / "demo" / "experiment.json")
QUICK = read_experiment(PLANS / "demo" / "experiment-quick.json")


def refused(experiment: Experiment, out: Path) -> dict[str, str]:
    before = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(Refusal) as caught:
        claim_folder(experiment, out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert {fault.exit_code for fault in caught.value.faults} == {ExitCode.OUTPUT}
    return {fault.pointer or "": fault.found for fault in caught.value.faults}


def record(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / RECORD_NAME).read_text())
    assert validate(found, "experiment-record", gate="test", file="r") == []
    return found


def test_the_same_experiment_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "new" / "demo"
    claim_folder(DEMO, out)
    first = record(out)
    assert sorted(first["drafts"]) == sorted(stage.arm for stage in (*DEMO.sft, *DEMO.rl))
    (out / "plans").mkdir()
    claim_folder(DEMO, out)
    assert record(out) == first


def test_arms_may_be_added(tmp_path: Path) -> None:
    claim_folder(narrow(DEMO, arms=["papo"], seed=None), tmp_path)
    assert sorted(record(tmp_path)["drafts"]) == ["papo", "sft_certificate"]
    claim_folder(narrow(DEMO, arms=["evi_po"], seed=None), tmp_path)
    assert sorted(record(tmp_path)["drafts"]) == ["evi_po", "papo", "sft_certificate"]
    claim_folder(DEMO, tmp_path)
    assert len(record(tmp_path)["drafts"]) == 6


def test_a_folder_with_nothing_of_anybody_s_is_taken(tmp_path: Path) -> None:
    (tmp_path / f"{TEMPORARY_PREFIX}x-{RECORD_NAME}").write_text("half")  # what a kill leaves
    claim_folder(DEMO, tmp_path)
    assert record(tmp_path)["name"] == "demo"


def test_a_stranger_s_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert refused(DEMO, tmp_path) == {"": "it holds files that do not belong to a run: thesis.tex"}


def test_another_seed_or_size_is_another_experiment(tmp_path: Path) -> None:
    claim_folder(DEMO, tmp_path)
    other = refused(narrow(DEMO, arms=None, seed=1), tmp_path)
    assert other == {"/seeds": "[0], of the experiment that was started here"}
    assert refused(QUICK, tmp_path) == {"/name": '"demo", of the experiment that was started here'}
    same_name = refused(replace(QUICK, name="demo"), tmp_path)
    assert same_name.keys() == {"/data", *(f"/drafts/{stage.arm}" for stage in QUICK.rl)}


def test_an_edited_draft_is_another_experiment(tmp_path: Path) -> None:
    claim_folder(DEMO, tmp_path)
    first, *rest = DEMO.rl
    edited = replace(first, draft={**first.draft, "data_seed": 5})
    assert list(refused(replace(DEMO, rl=(edited, *rest)), tmp_path)) == [f"/drafts/{first.arm}"]
    noted = replace(first, draft={**first.draft, "$schema": "elsewhere"})
    claim_folder(replace(DEMO, rl=(noted, *rest)), tmp_path)


def test_a_dataset_is_known_by_its_content(tmp_path: Path) -> None:
    manifest, out = tmp_path / "dataset-manifest.json", tmp_path / "out"
    manifest.write_text("{}")
    own = replace(DEMO, data={"manifest": str(manifest)})
    claim_folder(own, out)
    moved = manifest.rename(tmp_path / "moved.json")
    claim_folder(replace(DEMO, data={"manifest": str(moved)}), out)
    moved.write_text("{ }")
    assert list(refused(replace(DEMO, data={"manifest": str(moved)}), out)) == ["/data"]
    with pytest.raises(Refusal) as caught:
        claim_folder(own, out)
    assert caught.value.faults[0].found == "No such file or directory"


@pytest.mark.parametrize("content", ["{", "[]", '{"schema_version": 2}'])
def test_a_record_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / RECORD_NAME).write_text(content)
    with pytest.raises(Refusal) as caught:
        claim_folder(DEMO, tmp_path)
    assert all(fault.file == str(tmp_path / RECORD_NAME) for fault in caught.value.faults)
