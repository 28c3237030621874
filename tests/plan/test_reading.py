"""A plan file is accepted whole or refused with everything that is wrong with it."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.schema import load_schema
from explicit_learning.files.typed_json import field_names
from explicit_learning.plan.reading import load_plan, read_plan
from explicit_learning.plan.typed_plan import Plan
from tests.support.plans import PLAN, plan_with

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write(folder: Path, document: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    return path


def test_the_golden_plan_becomes_typed_values(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, PLAN))
    assert plan.optimisation.learning_rate == 0.001
    assert plan.lora.exclude_modules == ("lm_head",)
    assert plan.lora.alpha == 16.0
    assert isinstance(plan.lora.alpha, float)
    assert plan.objective is not None
    assert plan.objective.papo is None


def test_the_classes_mirror_the_schema_name_for_name() -> None:
    def compare(kind: type[Any], schema: dict[str, Any]) -> None:
        names = [name for name in schema["properties"] if not name.startswith("$")]
        assert sorted(field_names(kind)) == sorted(names), kind
        for name, hint in get_type_hints(kind).items():
            for option in get_args(hint) or (hint,):
                if hasattr(option, "__dataclass_fields__"):
                    compare(option, schema["properties"][name])

    compare(Plan, load_schema("plan"))


def test_the_schema_lists_the_arms_of_the_table() -> None:
    assert load_schema("plan")["properties"]["arm"]["enum"] == list(ARMS)


def test_ten_mistakes_are_ten_faults(tmp_path: Path) -> None:
    plan = copy.deepcopy(PLAN)
    plan["run_id"] = "no spaces allowed"
    plan["arm"] = "answer_grop"
    plan["seed"] = -1
    del plan["prompt"]
    plan["model"]["dtype"] = "float8"
    plan["optimisation"]["learning_rat"] = plan["optimisation"].pop("learning_rate")
    plan["optimisation"]["max_steps"] = 10.5
    plan["generation"]["top_p"] = 0
    plan["hardware"]["world_size"] = True
    plan["colour"] = "blue"
    faults = {fault.pointer: fault for fault in read_plan(write(tmp_path, plan)).faults}
    assert set(faults) == {
        "/run_id",
        "/arm",
        "/seed",
        "/prompt",
        "/model/dtype",
        "/optimisation/learning_rat",
        "/optimisation/max_steps",
        "/generation/top_p",
        "/hardware/world_size",
        "/colour",
    }
    assert faults["/arm"].fix == "write 'answer_grpo', if you meant that"
    assert faults["/optimisation/learning_rat"].fix == "write 'learning_rate', if you meant that"
    assert faults["/colour"].fix == "remove the field"
    assert faults["/seed"].expected.startswith("at least 0")


def test_an_edited_plan_is_found_by_its_hash(tmp_path: Path) -> None:
    plan = copy.deepcopy(PLAN)
    plan["seed"] = 1
    (fault,) = read_plan(write(tmp_path, plan)).faults
    assert fault.pointer == "/frozen_config_sha256"
    assert plan_with({"/seed": 1})["frozen_config_sha256"] in fault.expected


@pytest.mark.parametrize("pointer", ["/seed", "/model/path", "/optimisation/learning_rate", "/lora/exclude_modules"])
def test_the_frozen_hash_covers_every_group(pointer: str) -> None:
    new = {"/seed": 7, "/model/path": "x", "/optimisation/learning_rate": 0.5, "/lora/exclude_modules": []}
    assert plan_with({pointer: new[pointer]})["frozen_config_sha256"] != PLAN["frozen_config_sha256"]


def test_a_draft_is_told_apart_from_a_plan(tmp_path: Path) -> None:
    draft = {"arm": "sft_answer", "data": {"digits": {}}}
    with pytest.raises(Refusal) as caught:
        read_plan(write(tmp_path, draft))
    assert caught.value.faults[0].found == "a draft"
    assert "el freeze" in caught.value.faults[0].fix


@pytest.mark.parametrize("name", ["plan.json", "x" * 5000])
def test_a_plan_that_is_not_there_is_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_plan(tmp_path / name)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "mount" in caught.value.faults[0].fix


@pytest.mark.parametrize("document", [[], "text", 3, None])
def test_a_document_that_is_no_object_is_refused(tmp_path: Path, document: Any) -> None:
    with pytest.raises(Refusal) as caught:
        read_plan(write(tmp_path, document))
    assert caught.value.faults[0].expected == "a JSON object"


def fields(value: dict[str, Any], at: str = "") -> Iterator[str]:
    for name, item in value.items():
        yield f"{at}/{name}"
        if isinstance(item, dict):
            yield from fields(item, f"{at}/{name}")


@pytest.mark.parametrize("pointer", list(fields(PLAN)))
@pytest.mark.parametrize("spelling", ["{}x", "\u0430{}"])
def test_a_misspelt_field_is_a_fault_and_never_a_crash(tmp_path: Path, pointer: str, spelling: str) -> None:
    plan = copy.deepcopy(PLAN)
    *parents, name = pointer.split("/")[1:]
    holder = plan
    for parent in parents:
        holder = holder[parent]
    holder[spelling.format(name)] = holder.pop(name)
    faults = {fault.pointer: fault for fault in read_plan(write(tmp_path, plan)).faults}
    fault = faults["/" + "/".join([*parents, spelling.format(name)])]
    assert ("U+0430 CYRILLIC SMALL LETTER A" in fault.found) == (spelling[0] == "\u0430")
    assert set(faults) <= {fault.pointer, pointer}


def test_a_look_alike_in_a_value_is_shown_by_code_point(tmp_path: Path) -> None:
    (fault,) = read_plan(write(tmp_path, plan_with({"/arm": "answer_grp\u043e"}))).faults
    assert fault.found == '"answer_grp\u043e" (it holds U+043E CYRILLIC SMALL LETTER O)'


@pytest.mark.parametrize("pointer", ["/model/snapshot_sha256", "/code_commit", "/data/dataset/sha256"])
def test_nobody_is_told_to_write_a_hash_of_their_own(tmp_path: Path, pointer: str) -> None:
    (fault,) = read_plan(write(tmp_path, plan_with({pointer: "5"}))).faults
    assert fault.fix.endswith("this value is measured, not chosen")


def test_a_plan_is_read_once_and_its_bytes_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, PLAN)
    before = path.read_bytes()
    document = read_plan(path)
    path.write_text("another plan")
    assert document.data == before
