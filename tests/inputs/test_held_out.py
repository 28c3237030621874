"""What is held out for validation leaves training; a part that cannot be held out is refused before a run."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.data.dataset import check_dataset
from explicit_learning.data.preflight import asked_rows
from explicit_learning.data.slots import slot_manifest_sha256
from explicit_learning.errors import Refusal
from explicit_learning.files.typed_json import from_json
from explicit_learning.inputs.held_out import (
    HeldOutPart,
    held_out_of,
    held_out_of_document,
    leakage_warnings,
    read_held_out,
    trained_part,
)
from explicit_learning.inputs.sft_pass import sft_order
from explicit_learning.plan.typed_plan import Plan
from tests.support.dataset_builder import Builder
from tests.support.plans import VALIDATION, plan_with

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.errors import Fault


@pytest.fixture
def dataset(tmp_path: Path) -> CheckedDataset:
    """Four groups of slots, with certificates for each view of each."""
    builder = Builder(tmp_path / "data")
    first = copy.deepcopy([*builder.slots, *builder.sft])
    for number in range(1, 4):
        for row in copy.deepcopy(first):
            named = {name: row[name].replace("train-0", f"train-{number}") for name in ("group_id", "base_id")}
            for name in {"slot_id", "record_id"} & row.keys():
                named[name] = row[name].replace("train-0", f"train-{number}")
            (builder.sft if "record_id" in row else builder.slots).append(row | named)
    return check_dataset(builder.write(), images=False)


def part(share: float, *, slots_per_cycle: int = 1) -> HeldOutPart:
    return HeldOutPart(share=share, seed=0, slots_per_cycle=slots_per_cycle)


def found(dataset: CheckedDataset, asked: HeldOutPart, arm: str = "answer_grpo") -> list[Fault]:
    held_out = held_out_of(dataset.slots, share=asked.share, seed=asked.seed)
    return asked.faults(dataset.slots, held_out, arm=ARMS[arm], file="draft.json")


def test_slots_and_certificates_of_held_out_groups_are_not_trained_on(dataset: CheckedDataset) -> None:
    held_out = held_out_of(dataset.slots, share=0.25, seed=0)
    [group] = held_out.groups
    assert {(slot.group_id, slot.relation.value) for slot in held_out.questions} == {
        (group, relation) for relation in ("FULL", "CONTROL", "MISSING", "SUBSTITUTE")
    }
    trained = trained_part(dataset, held_out)
    assert {slot.group_id for slot in trained.slots} == {slot.group_id for slot in dataset.slots} - {group}
    assert {row.group_id for row in trained.sft} == {row.group_id for row in dataset.sft} - {group}
    whole = [row.record_id for row in sft_order(dataset.sft, arm="sft_certificate", data_seed=5)]
    left = [
        row.record_id for row in sft_order(dataset.sft, arm="sft_certificate", data_seed=5, held_out=held_out.groups)
    ]
    assert left == [name for name in whole if not name.startswith(f"{group}.")]  # the others keep their order


def test_nothing_is_left_out_without_validation(dataset: CheckedDataset) -> None:
    assert held_out_of_document({"validation": None}).groups == held_out_of_document({}).groups == frozenset()
    assert trained_part(dataset, held_out_of_document({})) is dataset


def test_an_sft_arm_is_asked_the_held_out_slots(dataset: CheckedDataset) -> None:
    held_out = held_out_of(dataset.slots, share=0.25, seed=0)
    names = [asked.name for asked in asked_rows(dataset, ARMS["sft_certificate"], held_out=held_out.groups)]
    assert set(names) >= {slot.slot_id for slot in held_out.questions}


def test_shares_that_leave_questions_and_slots_are_taken(dataset: CheckedDataset) -> None:
    assert [found(dataset, part(share)) for share in (0.25, 0.5, 0.75)] == [[], [], []]
    assert found(dataset, part(0.75, slots_per_cycle=4)) == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (part(0.1), "0.1 of 4 groups, which rounds to 0 groups"),
        (part(0.9), "0.9 of 4 groups: all of them"),
        (part(0.75, slots_per_cycle=5), "0.75 of 4 groups: 3 are held out, and 4 slots are left"),
    ],
)
def test_shares_that_do_not_are_refused(dataset: CheckedDataset, asked: HeldOutPart, told: str) -> None:
    [fault] = found(dataset, asked)
    assert (fault.pointer, fault.found) == ("/validation/share", told)


@pytest.mark.parametrize(("share", "fix", "right"), [(0.1, "at least 0.25", 0.25), (0.9, "at most 0.75", 0.75)])
def test_the_share_that_a_fix_names_works(dataset: CheckedDataset, share: float, fix: str, right: float) -> None:
    [fault] = found(dataset, part(share))
    assert fault.fix.startswith(f"set it to {fix}")
    assert found(dataset, part(right)) == []


def test_counts_and_hash_of_a_plan_are_compared(dataset: CheckedDataset) -> None:
    held_out = held_out_of(dataset.slots, share=0.25, seed=0)
    right: dict[str, Any] = {"share": 0.25, "groups": 1, "questions": 4, "questions_sha256": held_out.sha256}
    plan = from_json(Plan, plan_with({"/validation": VALIDATION | right}))
    asked = dataclasses.replace(part(0.25), frozen=plan.validation)
    assert found(dataset, asked) == []
    assert plan.validation is not None
    for name, wrong in (("groups", 2), ("questions", 3), ("questions_sha256", "0" * 64)):
        changed = dataclasses.replace(plan.validation, **{name: wrong})
        assert [fault.pointer for fault in found(dataset, dataclasses.replace(asked, frozen=changed))] == [
            f"/validation/{name}"
        ]


def test_a_rank_refuses_other_questions_than_were_frozen(dataset: CheckedDataset) -> None:
    assert dataset.manifest is not None
    file = dataset.manifest.path.parent / "slots.jsonl"
    held_out = held_out_of(dataset.slots, share=0.25, seed=0)
    right: dict[str, Any] = {"share": 0.25, "questions_sha256": held_out.sha256}
    plan = from_json(Plan, plan_with({"/validation": VALIDATION | right}))
    assert read_held_out(file, plan) == held_out
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    [group] = held_out.groups
    for row in rows:
        row["question"] = "Another?" if row["group_id"] == group else row["question"]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(Refusal) as caught:
        read_held_out(file, plan)
    [fault] = caught.value.faults
    assert fault.pointer == "/validation/questions_sha256"


def test_shared_images_are_warned_of(dataset: CheckedDataset) -> None:
    # All groups of this dataset show the same full image.
    held_out = held_out_of(dataset.slots, share=0.25, seed=0)
    [warning] = leakage_warnings(dataset, held_out, ARMS["answer_grpo"])
    assert warning.startswith("/validation: 4 of 4 held-out questions share a base item or a full image")


def test_identity_is_that_of_a_slot_manifest(dataset: CheckedDataset) -> None:
    held_out = held_out_of(dataset.slots, share=0.5, seed=0)
    assert held_out.sha256 == slot_manifest_sha256(held_out.questions[::-1])
