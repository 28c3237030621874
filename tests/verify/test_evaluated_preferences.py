"""What an evaluation says of a model's own best answers, checked against log-probs, texts and rows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.tree import FolderTree
from explicit_learning.rundir.answers import Preference, answered, asked_of
from explicit_learning.verify.evaluations import check_evaluation
from tests.support.evaluations import QUESTIONS, evaluate_run
from tests.support.finished_run import Run, sft_document
from tests.support.lifecycle import finish

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.rundir.answers import Answer

PREFERENCE = Preference(body="7", log_prob=-0.25, abstention_log_prob=-1.5)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run.of(tmp_path_factory.mktemp("finished") / "run", sft_document())
    run.prepare()
    run.checkpoint(3)
    assert finish(run) == 0
    return run.folder


@pytest.fixture
def run(tmp_path: Path, finished: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def answers() -> list[Answer]:
    said = ("7", "", "")
    return [
        answered(
            asked,
            f"<answer>{said[index % 3]}</answer>",
            terminated=True,
            preference=PREFERENCE if asked.image == "shown" else None,
        ).record()
        for index, asked in enumerate(asked_of(QUESTIONS))
    ]


def faults(run: Path, changed: list[Answer]) -> list[tuple[str, str | None]]:
    folder = evaluate_run(run, answers=changed)
    found = check_evaluation(FolderTree(folder), key=None, rows_of=lambda _: QUESTIONS).faults()
    return [(str(fault.file).removeprefix(f"{folder}/"), fault.pointer) for fault in found]


def test_what_the_engine_measured_is_accepted(run: Path) -> None:
    assert faults(run, answers()) == []


@pytest.mark.parametrize(
    ("row", "change", "pointer"),
    [
        (0, {"confidence": 0.99}, "/own_best/confidence"),
        (0, {"log_prob": -2.0}, "/own_best/confidence"),
        (1, {"right": False}, "/own_best/right"),
        (2, {"right": True}, "/own_best/right"),
    ],
)
def test_a_forged_field_of_a_preference_is_found(run: Path, row: int, change: dict[str, object], pointer: str) -> None:
    forged = answers()
    own = forged[row].own_best
    assert own is not None
    forged[row] = replace(forged[row], own_best=replace(own, **change))  # type: ignore[arg-type] # fields by name
    assert faults(run, forged) == [(f"answers.jsonl:{row + 1}", pointer)]


def test_a_greedy_answer_is_the_models_own_best(run: Path) -> None:
    forged = answers()
    other = answered(asked_of(QUESTIONS)[0], "<answer>3</answer>", terminated=True, preference=PREFERENCE).record()
    forged[0] = other
    assert faults(run, forged) == [("answers.jsonl:1", "/own_best/body")]


def test_an_own_best_answer_that_is_left_out_is_found(run: Path) -> None:
    forged = answers()
    forged[0] = replace(forged[0], own_best=None)
    assert faults(run, forged) == [("answers.jsonl:1", "/own_best")]


def test_an_own_best_answer_to_blank_images_is_found(run: Path) -> None:
    forged = answers()
    row = next(index for index, answer in enumerate(forged) if answer.image == "blank")
    forged[row] = answered(
        asked_of(QUESTIONS)[row], "<answer>7</answer>", terminated=True, preference=PREFERENCE
    ).record()
    assert faults(run, forged) == [(f"answers.jsonl:{row + 1}", "/own_best")]
