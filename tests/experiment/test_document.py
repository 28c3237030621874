"""An experiment names drafts; what its arms must share is checked before anything is trained."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.experiment.comparison import comparison_faults
from explicit_learning.experiment.document import OWN_FIELDS, narrow, read_experiment
from explicit_learning.experiment.runner import RunOfStage, stage_folder
from explicit_learning.files.resources import PLANS
from tests.support.plans import PLAN

DEMO = PLANS / "demo" / "experiment.json"


def write(folder: Path, **changes: Any) -> Path:
    document = json.loads(DEMO.read_text()) | changes
    for kind in ("sft", "rl"):
        document[kind] = [name if "/" in name else str(DEMO.parent / name) for name in document[kind]]
    path = folder / "experiment.json"
    path.write_text(json.dumps(document))
    return path


def refused(path: Path) -> dict[str, str]:
    with pytest.raises(Refusal) as caught:
        read_experiment(path)
    return {fault.pointer or "": fault.fix for fault in caught.value.faults}


def test_the_embedded_experiments_name_arms_that_exist() -> None:
    full, quick = read_experiment(DEMO), read_experiment(DEMO.with_name("experiment-quick.json"))
    arms = ["answer_grpo", "intervention_grpo", "defacto", "papo", "evi_po"]
    assert [stage.arm for stage in full.rl] == [stage.arm for stage in quick.rl] == arms
    assert full.initial_adapter_from == quick.initial_adapter_from == "sft_certificate"


def test_overrides_reach_every_draft_of_a_kind(tmp_path: Path) -> None:
    experiment = read_experiment(write(tmp_path, overrides={"rl": {"optimisation": {"max_steps": 7}}}))
    assert {stage.draft["optimisation"]["max_steps"] for stage in experiment.rl} == {7}
    assert all(stage.draft["optimisation"]["per_device_batch_size"] > 1 for stage in experiment.rl)
    assert "max_steps" not in experiment.sft[0].draft["optimisation"]


def test_overrides_that_are_given_win_over_the_documents(tmp_path: Path) -> None:
    path = write(tmp_path, overrides={"rl": {"optimisation": {"max_steps": 7, "learning_rate": 1e-4}}})
    experiment = read_experiment(path, overrides={"rl": {"optimisation": {"max_steps": 8}}})
    blocks = [stage.draft["optimisation"] for stage in experiment.rl]
    assert {(block["max_steps"], block["learning_rate"]) for block in blocks} == {(8, 1e-4)}


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"seeds": []}, "/seeds"),
        ({"seeds": [1, 1]}, "/seeds"),
        ({"sft": []}, "/sft"),
        ({"colour": 1}, "/colour"),
        ({"initial_adapter_from": "sft_answer"}, "/initial_adapter_from"),
        ({"rl": ["sft_answer.json"]}, "/rl/0"),
        ({"sft": ["answer_grpo.json"]}, "/sft/0"),
        ({"data": {}}, "/data"),
        ({"data": {"manifest": "a\0b"}}, "/data/manifest"),
        ({"rl": ["./a\0b.json"]}, "/rl/0"),
        ({"data": {"digits": {}, "manifest": "x"}}, "/data"),
    ],
)
def test_a_wrong_document_is_refused_by_field(tmp_path: Path, changes: dict[str, Any], pointer: str) -> None:
    assert pointer in refused(write(tmp_path, **changes))


def test_a_draft_that_is_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "absent.json").symlink_to("nowhere.json")
    with pytest.raises(Refusal) as caught:
        read_experiment(write(tmp_path, rl=[str(tmp_path / "absent.json")]))
    (fault,) = caught.value.faults
    assert fault.found == f"{tmp_path}/absent.json: a link to nowhere.json, which does not exist"


def test_a_missing_draft_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        read_experiment(write(tmp_path, rl=["./absent.json"]))
    (fault,) = caught.value.faults
    assert (fault.file, fault.pointer) == (str(tmp_path / "experiment.json"), "/rl/0")
    assert (fault.found, caught.value.exit_code) == ("./absent.json: no such file", ExitCode.CONTRACT)


@pytest.mark.parametrize("kind", ["sft", "rl"])
@pytest.mark.parametrize("name", OWN_FIELDS)
def test_an_override_that_would_do_nothing_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    assert f"/overrides/{kind}/{name}" in refused(write(tmp_path, overrides={kind: {name: PLAN[name]}}))


def test_only_some_arms_and_one_seed() -> None:
    experiment = narrow(read_experiment(DEMO), arms=["Answer-GRPO", "evi_po"], seed=4)
    assert [stage.arm for stage in experiment.rl] == ["answer_grpo", "evi_po"]
    assert experiment.seeds == (4,)
    assert [stage.arm for stage in experiment.sft] == ["sft_certificate"]


def test_an_empty_list_of_arms_is_a_usage_error_that_names_the_arms() -> None:
    with pytest.raises(Refusal) as caught:
        narrow(read_experiment(DEMO), arms=[], seed=None)
    (fault,) = caught.value.faults
    assert (fault.found, caught.value.exit_code) == ("an empty list", ExitCode.USAGE)
    assert fault.expected.endswith("answer_grpo, intervention_grpo, defacto, papo, evi_po")


@pytest.mark.parametrize("name", ["answer_gpro", "evi_po_ce"])
def test_an_arm_that_is_not_in_the_experiment_is_a_usage_error(name: str) -> None:
    with pytest.raises(Refusal) as caught:
        narrow(read_experiment(DEMO), arms=[name], seed=None)
    assert caught.value.exit_code == ExitCode.USAGE


def test_folders_name_the_seed_only_where_there_are_several(tmp_path: Path) -> None:
    one = read_experiment(write(tmp_path, seeds=[3]))
    assert stage_folder(tmp_path, one, "papo", 3) == tmp_path / "papo"
    two = read_experiment(write(tmp_path, seeds=[3, 4]))
    assert stage_folder(tmp_path, two, "papo", 3) == tmp_path / "papo-seed3"


def run_of(plan: dict[str, Any], arm: str) -> RunOfStage:
    return RunOfStage(arm=arm, seed=0, plan_file=Path(f"{arm}.json"), plan=plan | {"arm": arm}, folder=Path(arm))


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    plan = copy.deepcopy(PLAN)
    for pointer, value in changes.items():
        *parents, name = pointer.split("/")[1:]
        holder = plan
        for parent in parents:
            holder = holder[parent]
        holder[name] = value
    return plan


def differing(*runs: RunOfStage) -> list[tuple[str | None, str | None]]:
    plans = [(run.arm, run.plan_file, run.plan) for run in runs]
    return [(fault.file, fault.pointer) for fault in comparison_faults(plans)]


EVI_PO = {"lambda_dir": 0.5, "lambda_ev": 0.1, "kappa": 1.0, "margin": 1.0, "tau": 0.07}
FREE = {
    *("/$schema", "/arm", "/run_id", "/code_commit", "/code_dirty", "/frozen_config_sha256"),
    *("/model/path", "/initial_adapter/path", "/prompt/path", "/data/asset_root", "/data/dataset/path"),
    *("/data/dataset_manifest/path", "/data/evaluation_manifest/path"),
}


def leaves(value: Any, pointer: str = "") -> list[str]:
    if not isinstance(value, dict):
        return [pointer]
    return [leaf for name, item in value.items() for leaf in leaves(item, f"{pointer}/{name}")]


def test_plans_that_agree_may_be_compared() -> None:
    other = changed(dict.fromkeys(FREE, "different"))
    assert differing(run_of(PLAN, "answer_grpo"), run_of(other, "defacto")) == []


@pytest.mark.parametrize("pointer", sorted({*leaves(PLAN)} - FREE))
def test_every_other_field_is_compared(pointer: str) -> None:
    other = run_of(changed({pointer: "different"}), "defacto")
    assert differing(run_of(PLAN, "answer_grpo"), other) == [("defacto.json", pointer)]


@pytest.mark.parametrize(
    ("arm", "changes", "pointers"),
    [
        ("papo", {"/objective/papo": {"gamma": 0.01}, "/objective/beta": 0.01, "/objective/epsilon_high": 0.28}, []),
        ("papo", {"/objective/epsilon_low": 0.1}, ["/objective/epsilon_low"]),
        ("evi_po_ce", {"/objective/evi_po": EVI_PO}, []),
        ("evi_po_ce", {"/objective/evi_po": EVI_PO | {"lambda_dir": 0.4}}, ["/objective/evi_po/lambda_dir"]),
        ("evi_po_ce", {"/objective/evi_po": EVI_PO | {"tau": 0.1}}, ["/objective/evi_po/tau"]),
        ("evi_po_no_direction", {"/objective/evi_po": EVI_PO | {"lambda_dir": 0.0}}, []),
        ("evi_po_no_direction", {"/objective/evi_po": EVI_PO | {"lambda_ev": 0.0}}, ["/objective/evi_po/lambda_ev"]),
        ("evi_po_no_evidence", {"/objective/evi_po": EVI_PO | {"lambda_ev": 0.0}}, []),
        ("evi_po_ce", {"/objective/evi_po": EVI_PO, "/objective/beta": 0.1}, ["/objective/beta"]),
    ],
)
def test_arms_differ_only_in_what_their_table_says(arm: str, changes: dict[str, Any], pointers: list[str]) -> None:
    evi_po = run_of(changed({"/objective/evi_po": EVI_PO}), "evi_po")
    found = differing(run_of(PLAN, "answer_grpo"), evi_po, run_of(changed(changes), arm))
    assert found == [(f"{arm}.json", pointer) for pointer in pointers]


@pytest.mark.parametrize("document", sorted(PLANS.glob("*/experiment*.json")), ids=lambda path: path.parent.name)
def test_the_shipped_experiments_compare_arms_that_may_be_compared(document: Path) -> None:
    assert read_experiment(document).rl


def test_drafts_that_may_not_be_compared_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    changed_draft = json.loads((DEMO.parent / "papo.json").read_text())
    changed_draft["model"]["path"] = "elsewhere"
    changed_draft["seed"] = 4
    changed_draft["lora"]["rank"] = 8
    changed_draft["determinism"] = "seeded"
    changed_draft["objective"] = {"loss_type": "grpo", "beta": 0.02}
    (tmp_path / "papo.json").write_text(json.dumps(changed_draft))
    with pytest.raises(Refusal) as caught:
        read_experiment(write(tmp_path, rl=["answer_grpo.json", "./papo.json"]))
    faults = caught.value.faults
    assert {Path(fault.file or "").name for fault in faults} == {"papo.json"}
    assert [(fault.pointer, fault.found) for fault in faults] == [
        ("/determinism", '"seeded"'),
        ("/lora/rank", "8"),
        ("/objective/loss_type", '"grpo"'),
    ]


def test_a_path_that_no_file_system_takes_is_a_missing_draft(tmp_path: Path) -> None:
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps(json.loads(DEMO.read_text()) | {"sft": ["x" * 1000], "rl": ["a/" * 2000 + "b"]}))
    assert set(refused(path)) == {"/sft/0", "/rl/0"}
