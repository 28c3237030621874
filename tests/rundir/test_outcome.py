"""Outcomes of ranks: whole through a file, refused with every gap."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.typed_json import from_json
from explicit_learning.launch.outcomes import outcome_of_error
from explicit_learning.rundir.outcome import RankOutcome, outcome_path, read_outcome, write_outcome
from explicit_learning.rundir.rank_report import LossTerm

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE: dict[str, Any] = json.loads((SCHEMAS / "examples" / "rank-outcome.json").read_text())


def test_an_outcome_with_a_report_survives_the_way_through_a_file(tmp_path: Path) -> None:
    outcome = from_json(RankOutcome, EXAMPLE)
    write_outcome(tmp_path, 3, outcome)
    assert outcome_path(tmp_path, 3).name == "outcome-3.json"
    assert json.loads(outcome_path(tmp_path, 3).read_text()) == EXAMPLE
    assert read_outcome(tmp_path, 3) == outcome
    assert outcome.report is not None
    assert (outcome.report.completions, outcome.code) == (4800, ExitCode.DONE)
    assert outcome.report.loss_terms == {"policy": LossTerm(called=300, finite=True, gradient=True)}


@pytest.mark.parametrize("code", [code for code in ExitCode if code is not ExitCode.DONE])
def test_a_refusal_of_a_rank_survives_the_way_through_a_file(tmp_path: Path, code: ExitCode) -> None:
    fault = Fault(gate="data", file="rows.jsonl", pointer="/a", found="x", expected="y", fix="z", exit_code=code)
    outcome = outcome_of_error(Refusal(fault))
    write_outcome(tmp_path, 0, outcome)
    assert read_outcome(tmp_path, 0) == outcome
    assert (outcome.faults, outcome.code) == ((fault,), code)


def test_a_rank_that_left_nothing_has_no_outcome(tmp_path: Path) -> None:
    assert read_outcome(tmp_path, 0) is None


def test_an_impossible_measurement_is_refused_as_a_defect_before_it_is_written(tmp_path: Path) -> None:
    outcome = from_json(RankOutcome, EXAMPLE)
    assert outcome.report is not None
    broken = replace(outcome, report=replace(outcome.report, optimizer_steps=-1, device_seconds=-0.5))
    with pytest.raises(Refusal, match="report this as a defect") as refusal:
        write_outcome(tmp_path, 0, broken)
    assert [fault.pointer for fault in refusal.value.faults] == ["/report/device_seconds", "/report/optimizer_steps"]
    assert refusal.value.exit_code == ExitCode.INTERNAL
    assert read_outcome(tmp_path, 0) is None


def test_a_missing_measurement_is_refused_when_read(tmp_path: Path) -> None:
    report = {name: value for name, value in EXAMPLE["report"].items() if name != "final_adapter_tensors_sha256"}
    outcome_path(tmp_path, 0).write_text(json.dumps(EXAMPLE | {"report": report}))
    with pytest.raises(Refusal) as refusal:
        read_outcome(tmp_path, 0)
    assert [fault.pointer for fault in refusal.value.faults] == ["/report/final_adapter_tensors_sha256"]
