"""Drafts that validate: what freezing writes into the plan, what it refuses, and the smoke plan of such a plan."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.reading import read_slot_rows
from explicit_learning.errors import Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.resources import PLANS
from explicit_learning.freeze.freezing import freeze
from explicit_learning.freeze.smoke_plan import smoke_plan
from explicit_learning.gates.check import check_plan
from explicit_learning.inputs.frozen import resolved_paths
from explicit_learning.inputs.held_out import held_out_of
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256, read_plan
from tests.support.dataset_builder import Builder
from tests.support.sft_count import count_light

if TYPE_CHECKING:
    from pathlib import Path

RL, SFT = PLANS / "demo" / "answer_grpo.json", PLANS / "demo" / "sft_certificate.json"


@pytest.fixture
def draft(small_digits_manifest: Path, demo_adapter: Path) -> dict[str, Any]:
    document = json.loads(RL.read_text())
    document["data"] = {"manifest": str(small_digits_manifest)}
    document["initial_adapter"] = {"path": str(demo_adapter)}
    document["optimisation"]["per_device_batch_size"] = 8
    return document | {"validation": {"every_steps": 20, "share": 0.25}}


def frozen(draft: dict[str, Any], out: Path, *, file: Path = RL) -> dict[str, Any]:
    plan, _ = freeze(draft, file=file, out=out, count_sft=count_light)
    return plan


def refused(draft: dict[str, Any], out: Path) -> list[tuple[str | None, str]]:
    with pytest.raises(Refusal) as caught:
        frozen(draft, out)
    assert not out.exists()
    return [(fault.pointer, fault.fix) for fault in caught.value.faults]


def test_a_plan_names_what_is_held_out_by_hash(
    draft: dict[str, Any], tmp_path: Path, small_digits_manifest: Path
) -> None:
    plan = frozen(draft, tmp_path / "plan.json")
    file = small_digits_manifest.parent / "slots.jsonl"
    held_out = held_out_of(read_slot_rows(file), share=0.25, seed=0)
    assert held_out.groups
    block = plan["validation"]
    assert block == {
        "every_steps": 20,
        "share": 0.25,
        "seed": 0,
        "slots": {"path": block["slots"]["path"], "sha256": sha256_file(file)},
        "groups": len(held_out.groups),
        "questions": len(held_out.questions),
        "questions_sha256": held_out.sha256,
    }
    document = read_plan(tmp_path / "plan.json")
    assert resolved_paths(document).validation == str(file)
    faults = [fault for fault in check_plan(document, out=None).faults if fault.gate in {"data", "plan"}]
    assert faults == []


def test_a_draft_without_it_holds_out_nothing(draft: dict[str, Any], tmp_path: Path) -> None:
    del draft["validation"]
    assert frozen(draft, tmp_path / "plan.json")["validation"] is None
    assert resolved_paths(read_plan(tmp_path / "plan.json")).validation is None


def test_an_sft_arm_is_validated_on_the_slots_of_its_dataset(small_digits_manifest: Path, tmp_path: Path) -> None:
    document = json.loads(SFT.read_text()) | {"data": {"manifest": str(small_digits_manifest)}}
    document["optimisation"]["save_interval"] = 2
    without = frozen(copy.deepcopy(document), tmp_path / "without.json", file=SFT)
    block = {"every_steps": 2, "share": 0.25}
    plan = frozen(document | {"validation": block}, tmp_path / "plan.json", file=SFT)
    assert plan["validation"]["slots"]["path"].endswith("slots.jsonl")
    assert plan["data"]["slot_manifest_sha256"] is None
    # The digits' certificates are of other groups than its slots: none of them leaves.
    assert plan["optimisation"]["max_steps"] == without["optimisation"]["max_steps"]
    faults = [
        fault
        for fault in check_plan(read_plan(tmp_path / "plan.json"), out=None).faults
        if fault.gate in {"data", "plan", "preflight"}
    ]
    assert faults == []


def test_a_dataset_without_slots_cannot_be_validated_on(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "data")
    builder.slots = []
    document = json.loads(SFT.read_text()) | {"data": {"manifest": str(builder.write())}}
    with pytest.raises(Refusal) as caught:
        frozen(document | {"validation": {"every_steps": 40}}, tmp_path / "plan.json", file=SFT)
    assert [(fault.pointer, fault.found) for fault in caught.value.faults] == [
        ("/validation", "a dataset without slots")
    ]


@pytest.mark.parametrize(("share", "pointer"), [(0.001, "/validation/share"), (0.999, "/validation/share")])
def test_a_share_that_rounds_to_nothing_or_everything_is_refused(
    draft: dict[str, Any], tmp_path: Path, share: float, pointer: str
) -> None:
    draft["validation"]["share"] = share
    assert [found for found, _ in refused(draft, tmp_path / "plan.json")] == [pointer]


def test_a_share_that_leaves_too_few_slots_for_a_step_is_refused(draft: dict[str, Any], tmp_path: Path) -> None:
    draft["optimisation"]["per_device_batch_size"] = 64  # eight slots a step, and one group of four is left
    draft["validation"]["share"] = 0.9
    assert "/validation/share" in {found for found, _ in refused(draft, tmp_path / "plan.json")}


def test_an_interval_that_saves_nothing_is_refused_at_freezing(draft: dict[str, Any], tmp_path: Path) -> None:
    draft["validation"]["every_steps"] = 15
    [(pointer, fix)] = refused(draft, tmp_path / "plan.json")
    assert (pointer, fix) == ("/validation/every_steps", "set it, for example, to 20, or set save_interval to 15")


def test_a_misspelt_field_of_a_draft_is_told_the_right_one(draft: dict[str, Any], tmp_path: Path) -> None:
    draft["validation"] = {"every_step": 20}
    [(pointer, fix)] = refused(draft, tmp_path / "plan.json")
    assert (pointer, fix) == ("/validation/every_step", "write 'every_steps', if you meant that")


@pytest.mark.parametrize(
    ("field", "value"),
    [("groups", 99), ("questions", 99), ("questions_sha256", "0" * 64), ("seed", 1), ("share", 0.5)],
)
def test_the_gate_computes_again_what_is_held_out(
    draft: dict[str, Any], tmp_path: Path, field: str, value: object
) -> None:
    out = tmp_path / "plan.json"
    plan = frozen(draft, out)
    plan["validation"][field] = value
    plan[FROZEN] = frozen_config_sha256(plan)
    out.write_text(json.dumps(plan))
    faults = check_plan(read_plan(out), out=None).faults
    found = {fault.pointer for fault in faults if (fault.pointer or "").startswith("/validation/")}
    assert "/validation/questions_sha256" in found or f"/validation/{field}" in found


def test_another_file_of_slots_is_refused_by_the_gate(draft: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    plan = frozen(draft, out)
    plan["validation"]["slots"]["path"] = plan["data"]["evaluation_manifest"]["path"]
    plan[FROZEN] = frozen_config_sha256(plan)
    out.write_text(json.dumps(plan))
    faults = check_plan(read_plan(out), out=None).faults
    assert "/validation/slots/path" in {fault.pointer for fault in faults}


def test_a_smoke_plan_validates_where_it_stops_and_at_its_end(draft: dict[str, Any], tmp_path: Path) -> None:
    draft["optimisation"]["logging_interval"] = 10
    main = frozen(draft, tmp_path / "plan.json")
    smoke = smoke_plan(
        main,
        file=tmp_path / "plan.json",
        out=tmp_path / "deep" / "smoke.json",
        count_steps=lambda *_: pytest.fail("RL"),
    )
    assert smoke["validation"]["every_steps"] == smoke["optimisation"]["save_interval"] == 5
    assert smoke["optimisation"]["logging_interval"] == 1
    named = (tmp_path / "deep" / smoke["validation"]["slots"]["path"]).resolve()
    assert named == (tmp_path / main["validation"]["slots"]["path"]).resolve()
    same = {name: value for name, value in smoke["validation"].items() if name not in {"every_steps", "slots"}}
    assert same == {name: main["validation"][name] for name in same}
