"""Facts of ranks: whole through a file, refused with every gap."""

from __future__ import annotations

import json
from typing import Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.rundir.rank_report import LossTerm, TrainingFacts


@pytest.fixture
def document() -> dict[str, Any]:
    value: dict[str, Any] = json.loads((SCHEMAS / "examples" / "training-facts.json").read_text())
    return value


def test_facts_survive_the_way_through_a_file(document: dict[str, Any]) -> None:
    facts = TrainingFacts.from_json(document, source="rank 0")
    assert facts.completions == 4800
    assert facts.loss_terms == {"policy": LossTerm(present=True, finite=True, gradient=True)}
    assert json.loads(json.dumps(facts.to_json())) == document


def test_a_missing_measurement_is_refused_as_a_defect(document: dict[str, Any]) -> None:
    del document["final_adapter_tensors_sha256"]
    document["optimizer_steps"] = -1
    with pytest.raises(Refusal) as refusal:
        TrainingFacts.from_json(document, source="rank 0")
    assert [fault.pointer for fault in refusal.value.faults] == ["/final_adapter_tensors_sha256", "/optimizer_steps"]
    assert refusal.value.exit_code == ExitCode.INTERNAL
