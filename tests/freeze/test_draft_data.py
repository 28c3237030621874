"""The embedded digits are made for a plan, and only for one that is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.digits import SIZES, Size
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import PLANS
from explicit_learning.freeze import draft_data
from explicit_learning.freeze.freezing import freeze
from explicit_learning.gates.check import check_plan
from explicit_learning.plan.reading import read_plan

if TYPE_CHECKING:
    from pathlib import Path

DRAFT = PLANS / "demo" / "answer_grpo.json"
FOLDER = "digits-3-quick"


def freezing(out: Path, group: str = "generation", **changes: Any) -> dict[str, Any]:
    draft = json.loads(DRAFT.read_text()) | {"data": {"digits": {"seed": 3, "size": "quick"}}}
    draft[group] |= changes
    plan, _ = freeze(draft, file=DRAFT, out=out, count_sft=lambda *_: pytest.fail("an RL draft has no SFT pass"))
    return plan


@pytest.fixture
def few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the quick size be a smaller one: these tests are about where the data lies, not how much there is."""
    monkeypatch.setitem(SIZES, "quick", Size(sft_items=8, slot_groups=4, evaluation_groups=2))


@pytest.mark.usefixtures("few_items")
@pytest.mark.parametrize(
    ("group", "change"),
    [
        ("generation", {"max_prompt_tokens": 8}),  # refused with the rows
        ("optimisation", {"per_device_batch_size": 12}),  # refused with the plan
    ],
)
@pytest.mark.parametrize("folder", [".", "new/er"])
def test_a_draft_that_is_refused_leaves_no_data_behind(
    tmp_path: Path, group: str, change: dict[str, int], folder: str
) -> None:
    with pytest.raises(Refusal) as caught:
        freezing(tmp_path / folder / "plan.json", group, **change)
    assert list(tmp_path.iterdir()) == []
    rows = str(tmp_path / folder / FOLDER / "slots.jsonl")
    assert group == "optimisation" or caught.value.faults[0].file == f"{rows}:1"
    assert not any(".writing-" in str(fault) for fault in caught.value.faults)


@pytest.mark.slow
def test_the_data_lies_where_the_plan_says(tmp_path: Path) -> None:
    plan = freezing(tmp_path / "plan.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == [FOLDER, "plan.json"]
    assert plan["data"]["asset_root"] == FOLDER
    assert plan["data"]["dataset"]["path"] == f"{FOLDER}/slots.jsonl"
    assert plan["data"]["dataset_manifest"]["path"] == f"{FOLDER}/dataset-manifest.json"
    found = {fault.gate for fault in check_plan(read_plan(tmp_path / "plan.json"), out=None).faults}
    assert found & {"data", "plan", "preflight"} == set()
    assert freezing(tmp_path / "again.json") == plan
    with pytest.raises(Refusal):
        freezing(tmp_path / "third.json", max_prompt_tokens=8)
    assert (tmp_path / FOLDER / "dataset-manifest.json").is_file()


@pytest.mark.slow
def test_data_that_another_process_made_meanwhile_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, plans = draft_data.check_dataset, []

    def slowly(path: Path) -> Any:
        if not plans:
            plans.append({})
            plans.append(freezing(tmp_path / "other.json"))
        return check(path)

    monkeypatch.setattr(draft_data, "check_dataset", slowly)
    assert freezing(tmp_path / "plan.json") == plans[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [FOLDER, "other.json", "plan.json"]


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "notes.txt").write_text("mine")
    with pytest.raises(Refusal) as caught:
        freezing(tmp_path / "plan.json")
    assert caught.value.exit_code == ExitCode.OUTPUT
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["notes.txt"]
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]
