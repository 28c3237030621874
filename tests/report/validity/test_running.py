"""Running the study: what is done already is left out; a real run is in the slow tests of experiments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.errors import Refusal
from explicit_learning.experiment.document import read_experiment
from explicit_learning.files.resources import PLANS, ROOT
from explicit_learning.launch.signals import StopRequest
from explicit_learning.report.validity import running
from explicit_learning.report.validity.rows import BASE, STUDIES, read_study, settings_of, write_study
from explicit_learning.report.validity.running import run_study
from tests.support.validity import STUDY_ROW

if TYPE_CHECKING:
    from pathlib import Path


def test_the_studies_have_the_same_settings_for_every_arm_and_the_demos_drafts() -> None:
    found = {name: read_experiment(PLANS / "validity" / f"{name}.json") for name in STUDIES}
    rl = {name for name, arm in ARMS.items() if not arm.is_sft}
    assert {stage.arm for stage in found["certificate"].rl} == {stage.arm for stage in found["answer"].rl} == rl
    assert found["certificate"].initial_adapter_from == "sft_certificate"
    assert found["answer"].initial_adapter_from == "sft_answer"
    for experiment in found.values():
        assert experiment.seeds == (0, 1, 2, 3, 4)
        assert experiment.data["digits"]["seed"] == 1, "the demo's data were looked at while settings were chosen"
        drafts = {stage.file.parent.resolve() for stage in (*experiment.sft, *experiment.rl)}
        assert drafts == {(PLANS / "demo").resolve()}


def test_a_seed_whose_rows_are_all_there_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[int, ...]] = []
    monkeypatch.setattr(running, "run_experiment", lambda experiment, **_: started.append(experiment.seeds))
    rows = tmp_path / "rows.jsonl"
    arms = [BASE, "sft_certificate", "answer_grpo", "intervention_grpo", "evi_po"]
    settings = settings_of(read_experiment(PLANS / "validity" / "operators.json"))
    write_study(rows, [replace(STUDY_ROW, study="operators", arm=arm, settings_sha256=settings) for arm in arms])
    for seed in (0, 1):
        run_study(
            "operators",
            seed,
            out=tmp_path / "out",
            rows=rows,
            jobs=1,
            stop=StopRequest(),
            count_sft=lambda *_: pytest.fail("nothing is frozen"),
        )
    assert started == [(1,)]


def test_rows_of_other_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run_experiment", lambda *_, **__: pytest.fail("nothing is run"))
    rows = tmp_path / "rows.jsonl"
    write_study(rows, [replace(STUDY_ROW, study="operators")])
    with pytest.raises(Refusal, match="rows of operators that were made with other drafts, data or arms"):
        run_study(
            "operators",
            0,
            out=tmp_path,
            rows=rows,
            jobs=1,
            stop=StopRequest(),
            count_sft=lambda *_: pytest.fail("nothing is frozen"),
        )


def test_settings_are_drafts_data_and_arms_and_not_seeds() -> None:
    experiment = read_experiment(PLANS / "validity" / "operators.json")
    settings = settings_of(experiment)
    assert settings_of(replace(experiment, seeds=(7,), name="other")) == settings
    [first, *rest] = experiment.rl
    changed = replace(first, draft=first.draft | {"optimisation": {"max_steps": 1}})
    for other in (
        replace(experiment, rl=tuple(rest)),
        replace(experiment, rl=(changed, *rest)),
        replace(experiment, data={"digits": {"seed": 2, "size": "validity"}}),
        replace(experiment, initial_adapter_from="sft_answer"),
    ):
        assert settings_of(other) != settings


def test_the_rows_have_the_settings_of_the_experiments() -> None:
    for row in read_study(ROOT / "docs" / "validity" / "rows.jsonl"):
        assert row.settings_sha256 == settings_of(read_experiment(PLANS / "validity" / f"{row.study}.json"))
