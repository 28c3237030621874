"""Evidence is asked for where the plan weighs it, and nowhere else."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from explicit_learning.data.dataset import check_dataset, direction_faults, evidence_faults
from explicit_learning.data.digits.writer import Size, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.data.group_rules import Located
    from explicit_learning.data.rows import SlotRow


def weighed(lambda_ev: float) -> dict[str, Any]:
    return {"papo": None, "evi_po": {"lambda_ev": lambda_ev}}


def bare(item: Located[SlotRow]) -> Located[SlotRow]:
    full = dataclasses.replace(item.row.full_view, boxes=())
    return dataclasses.replace(item, row=dataclasses.replace(item.row, full_view=full))


def test_a_group_without_evidence_is_refused_where_evidence_is_weighed(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", seed=0, size=Size(sft_items=2, slot_groups=3, evaluation_groups=2))
    whole = check_dataset(tmp_path / "data" / "dataset-manifest.json")
    assert whole.faults == ()
    assert evidence_faults(whole, objective=weighed(0.1)) == []
    kept = whole.slots[0].group_id
    without = dataclasses.replace(
        whole, located_slots=tuple(item if item.row.group_id == kept else bare(item) for item in whole.located_slots)
    )
    assert evidence_faults(without, objective=weighed(0.0)) == []
    [fault] = evidence_faults(without, objective=weighed(0.1))
    assert fault.found.startswith("2 groups without evidence")
    assert fault.pointer == "/full_view/evidence"
    assert evidence_faults(without, objective=None) == evidence_faults(without, objective={"evi_po": None}) == []


def test_slots_without_an_intervened_view_are_refused_where_the_direction_is_weighed(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", seed=0, size=Size(sft_items=2, slot_groups=3, evaluation_groups=2))
    whole = check_dataset(tmp_path / "data" / "dataset-manifest.json")
    assert direction_faults(whole, objective={"evi_po": {"lambda_dir": 0.5}}) == []
    unchanged = tuple(item for item in whole.located_slots if item.row.relation in {"FULL", "CONTROL"})
    without = dataclasses.replace(whole, located_slots=unchanged)
    assert direction_faults(without, objective={"evi_po": {"lambda_dir": 0.0}}) == []
    [fault] = direction_faults(without, objective={"evi_po": {"lambda_dir": 0.5}})
    assert (fault.pointer, fault.found) == ("/relation", f"{len(unchanged)} slots, all CONTROL or FULL")
    assert direction_faults(without, objective=None) == direction_faults(without, objective={"evi_po": None}) == []
