"""Everything that freezing measures is measured again: no plan that was edited and hashed again passes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import PLANS
from explicit_learning.files.schema import load_schema
from explicit_learning.freeze.freezing import freeze
from explicit_learning.gates.check import check_plan
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256, read_plan
from tests.support.sft_count import count_light

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ARMS = ("sft_certificate", "evi_po")
OTHER_HASH = "a" * 64
# A value of the right form, and not the measured one, by the field's name; all hashes have one.
WRONG: dict[str, Any] = {
    "path": "nowhere",
    "asset_root": "nowhere",
    "terminal_token_ids": [7],
    "answer_regex": ".*",
    "planned_sft_loss_tokens": 1,
}
# What the code was cannot be measured again: running other code is permitted, and reported.
CODE = {("code_commit",), ("code_dirty",)}


def measured(schema: dict[str, Any], *above: str, whole: bool = False) -> Iterator[tuple[str, ...]]:
    """Yield the fields of plans that freezing measures, as a path of names."""
    for name, field in schema["properties"].items():
        here = whole or bool(field.get("x-computed"))
        if "properties" in field:
            yield from measured(field, *above, name, whole=here)
        elif here:
            yield (*above, name)


FIELDS = sorted(set(measured(load_schema("plan"))) - CODE - {(FROZEN,)})


@pytest.fixture(scope="module", params=ARMS)
def plan(request: pytest.FixtureRequest, small_digits_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plans") / "plan.json"
    file = PLANS / "demo" / f"{request.param}.json"
    draft = json.loads(file.read_text()) | {"data": {"manifest": str(small_digits_manifest)}}
    freeze(draft, file=file, out=out, count_sft=count_light)
    return out


def gates(plan: Path) -> set[str]:
    return {fault.gate for fault in check_plan(read_plan(plan), out=None).faults}


def test_what_was_frozen_passes(plan: Path) -> None:
    assert gates(plan) & {"plan", "data", "model", "prompt", "adapter", "preflight"} == set()


@pytest.mark.parametrize("field", FIELDS, ids="/".join)
def test_a_measured_field_that_was_edited_is_refused(plan: Path, field: tuple[str, ...]) -> None:
    document = json.loads(plan.read_text())
    holder = document
    for name in field[:-1]:
        holder = holder[name]
        if holder is None:
            pytest.skip("an SFT arm has no initial adapter")
    wrong = OTHER_HASH if field[-1].endswith("sha256") else WRONG[field[-1]]
    assert holder[field[-1]] != wrong
    holder[field[-1]] = wrong
    document[FROZEN] = frozen_config_sha256(document)
    edited = plan.with_name("edited.json")
    edited.write_text(json.dumps(document))
    faults = check_plan(read_plan(edited), out=None).faults
    pointers = {fault.pointer for fault in faults if fault.file == str(edited)}
    assert faults
    assert field[-1] in {"path", "asset_root"} or f"/{'/'.join(field)}" in {fault.pointer for fault in faults}, pointers
