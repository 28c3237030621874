"""A run that is too short to compute a weighted term is refused before it is trained."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from explicit_learning.arms import ARMS
from explicit_learning.data.image_grid import ResizeRules
from explicit_learning.data.reading import read_slot_rows
from explicit_learning.data.rows import EvidenceBox, EvidenceMask
from explicit_learning.data.slots import training_order
from explicit_learning.errors import Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.resources import ASSETS, PLANS
from explicit_learning.freeze.freezing import freeze
from explicit_learning.gates.check import check_plan
from explicit_learning.inputs.visits import PlannedVisits, idle_term_faults
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256, read_plan
from explicit_learning.plan.typed_plan import EviPo
from tests.support.dataset_builder import Builder

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.data.rows import SlotRow
    from explicit_learning.errors import Fault

EVI_PO = EviPo(
    adapter_version="evi_po/1", lambda_dir=0.5, lambda_ev=0.1, kappa=1.0, margin=1.0, tau=0.07, max_rows_per_forward=32
)
# With data seed 0, the first slot that a run visits is one of group train-8, the second one of train-0.
SEED, FIRST = 0, "train-8"


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    """Nine groups, of which only train-0 has MISSING and SUBSTITUTE views."""
    builder = Builder(tmp_path / "data")
    for number in range(1, 9):
        for slot in copy.deepcopy([slot for slot in builder.slots[:4] if slot["relation"] in {"FULL", "CONTROL"}]):
            names = {name: slot[name].replace("train-0", f"train-{number}") for name in ("slot_id", "group_id")}
            builder.slots.append(slot | names | {"base_id": names["group_id"]})
    return builder


def slots(builder: Builder) -> list[SlotRow]:
    builder.write()
    return list(read_slot_rows(builder.folder / "slots.jsonl"))


def visits(steps: int, *, slots_per_cycle: int = 1, iterations: int = 1) -> PlannedVisits:
    return PlannedVisits(
        seed=0, data_seed=SEED, max_steps=steps, slots_per_cycle=slots_per_cycle, iterations=iterations
    )


def found(rows: list[SlotRow], builder: Builder, planned: PlannedVisits, **changes: Any) -> list[Fault]:
    return idle_term_faults(
        rows,
        ARMS[changes.pop("arm", "evi_po")],
        dataclasses.replace(EVI_PO, **changes),
        planned,
        rules=ResizeRules.of_model(ASSETS / "tiny-vlm" / "model", max_image_tokens=None),
        asset_root=builder.folder,
        file="plan.json",
    )


def test_the_order_of_these_slots(builder: Builder) -> None:
    order = training_order([slot["slot_id"] for slot in builder.slots], data_seed=SEED, visit=0)
    assert order[:2] == (f"{FIRST}.full", "train-0.full")


def draft_of(builder: Builder, adapter: Path, arm: str, steps: int) -> dict[str, Any]:
    draft: dict[str, Any] = json.loads((PLANS / "demo" / f"{arm}.json").read_text())
    draft |= {"data": {"manifest": str(builder.write())}, "initial_adapter": {"path": str(adapter)}}
    draft["optimisation"] |= {"max_steps": steps, "per_device_batch_size": 8, "save_interval": 1}
    return draft


@pytest.mark.parametrize("arm", ["evi_po", "evi_po_ce", "evi_po_shuffled_evidence"])
def test_freezing_and_checking_count_the_visits(builder: Builder, demo_adapter: Path, tmp_path: Path, arm: str) -> None:
    file, out = PLANS / "demo" / f"{arm}.json", tmp_path / "plan.json"

    def never(*_: Any) -> Any:
        raise AssertionError("an RL draft has no SFT pass to count")

    with pytest.raises(Refusal) as caught:
        freeze(draft_of(builder, demo_adapter, arm, 1), file=file, out=out, count_sft=never)
    (fault,) = caught.value.faults
    assert (fault.gate, fault.file, fault.pointer) == ("data", str(file), "/optimisation/max_steps")
    assert fault.found == (
        "1: the run ends before its first visit of a group with a MISSING or SUBSTITUTE view, which is slot visit 2"
    )
    assert fault.fix == "set it to at least 2, or set lambda_dir to 0"
    freeze(draft_of(builder, demo_adapter, arm, 2), file=file, out=out, count_sft=never)
    document = json.loads(out.read_text())
    document["optimisation"]["max_steps"] = 1
    document[FROZEN] = frozen_config_sha256(document)
    out.write_text(json.dumps(document))
    (again,) = [fault for fault in check_plan(read_plan(out), out=None).faults if fault.gate == "data"]
    assert again == dataclasses.replace(fault, file=str(out))


def test_what_does_not_weigh_the_direction_may_be_short(builder: Builder, demo_adapter: Path, tmp_path: Path) -> None:
    rows = slots(builder)
    assert found(rows, builder, visits(1), lambda_dir=0.0) == []
    file = PLANS / "demo" / "evi_po_no_direction.json"
    draft = draft_of(builder, demo_adapter, "evi_po_no_direction", 1)
    freeze(draft, file=file, out=tmp_path / "plan.json", count_sft=lambda *_: pytest.fail("an RL draft"))


@pytest.mark.parametrize(
    ("planned", "least"),
    [
        (visits(1), 2),
        (visits(2), None),
        (visits(1, slots_per_cycle=2), None),
        # Two steps use one cycle's completions, so the second visit is in the third and fourth step.
        (visits(2, iterations=2), 4),
        (visits(3, iterations=2), None),
        (visits(1, slots_per_cycle=0), None),  # refused elsewhere: a group spans ranks
    ],
)
def test_visits_follow_from_steps_cycles_and_ranks(builder: Builder, planned: PlannedVisits, least: int | None) -> None:
    fixes = [fault.fix for fault in found(slots(builder), builder, planned)]
    assert fixes == ([] if least is None else [f"set it to at least {least}, or set lambda_dir to 0"])


def with_evidence(rows: list[SlotRow], masked: dict[str, EvidenceMask]) -> list[SlotRow]:
    """Give every group the mask of its id, or else its own box again."""

    def changed(row: SlotRow) -> SlotRow:
        boxes = () if row.group_id in masked else (EvidenceBox(image_index=0, x0=0, y0=0, x1=4, y1=3),)
        masks = (masked[row.group_id],) if row.group_id in masked else ()
        return dataclasses.replace(row, full_view=dataclasses.replace(row.full_view, boxes=boxes, masks=masks))

    return [changed(row) for row in rows]


def mask(folder: Path, name: str, value: int) -> EvidenceMask:
    Image.new("L", (8, 6), value).save(folder / name)
    return EvidenceMask(image_index=0, path=name, sha256=sha256_file(folder / name))


def test_evidence_that_covers_no_image_token_is_no_visit(builder: Builder) -> None:
    rows = slots(builder)
    empty, whole = mask(builder.folder, "empty.png", 0), mask(builder.folder, "whole.png", 255)
    assert found(with_evidence(rows, {FIRST: whole}), builder, visits(1), lambda_dir=0.0) == []
    (fault,) = found(with_evidence(rows, {FIRST: empty}), builder, visits(1), lambda_dir=0.0)
    assert fault.pointer == "/optimisation/max_steps"
    assert fault.fix == "set it to at least 2, or set lambda_ev to 0"
    assert found(with_evidence(rows, {FIRST: empty}), builder, visits(2), lambda_dir=0.0) == []
    assert found(with_evidence(rows, {FIRST: empty}), builder, visits(1), lambda_dir=0.0, lambda_ev=0.0) == []
    nowhere = with_evidence(rows, dict.fromkeys({row.group_id for row in rows}, empty))
    (fault,) = found(nowhere, builder, visits(2), lambda_dir=0.0)
    assert (fault.pointer, fault.found) == (
        "/data/dataset",
        "20 slots of groups whose evidence covers none, or whose answer is an abstention",
    )


def test_shuffled_evidence_counts_as_it_is_given(builder: Builder) -> None:
    rows = with_evidence(slots(builder), {FIRST: mask(builder.folder, "empty.png", 0)})
    # The first group has an empty mask of its own, and is given another group's box.
    assert found(rows, builder, visits(1), lambda_dir=0.0, arm="evi_po_shuffled_evidence") == []


def test_a_group_whose_answer_is_an_abstention_has_no_evidence_term(builder: Builder) -> None:
    rows = [
        dataclasses.replace(row, full_answer="") if row.group_id == FIRST else row
        for row in with_evidence(slots(builder), {})
    ]
    (fault,) = found(rows, builder, visits(1), lambda_dir=0.0)
    assert fault.fix == "set it to at least 2, or set lambda_ev to 0"
