"""Answers of an unfinished evaluation: what a kill costs, and what is not taken from the file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.evaluation.partial import PartialAnswers, remove_partial
from explicit_learning.rundir import layout
from explicit_learning.rundir.answers import Preference, answered, asked_of
from tests.support.evaluation_requests import IDENTITY
from tests.support.evaluations import question
from tests.support.machines import MACHINE

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.rundir.answers import Answer

ROWS = [question(name, number=number) for number, name in enumerate(("FULL", "CONTROL", "MISSING", "FULL", "FULL"))]
ASKED = asked_of(ROWS)  # 8
PREFERENCE = Preference(body="7", log_prob=-0.25, abstention_log_prob=-1.5)
ANSWERS = [answered(asked, "<answer>7</answer>", terminated=True, preference=PREFERENCE).record() for asked in ASKED]
BATCH = 3


def written(folder: Path, answers: list[Answer]) -> Path:
    with PartialAnswers(folder, IDENTITY, MACHINE) as partial:
        assert partial.read(ASKED, batch=BATCH) == []
        partial.append(answers)
    [file] = folder.iterdir()
    return file


def kept(folder: Path) -> list[Answer]:
    with PartialAnswers(folder, IDENTITY, MACHINE) as partial:
        return partial.read(ASKED, batch=BATCH)


@pytest.mark.parametrize("count", range(len(ANSWERS) + 1))
def test_whole_batches_are_gone_on_with(tmp_path: Path, count: int) -> None:
    file = written(tmp_path, ANSWERS[:count])
    assert not layout.belongs_to_run(file.name), "verify and pack leave it out"
    expected = ANSWERS if count == len(ANSWERS) else ANSWERS[: count // BATCH * BATCH]
    assert kept(tmp_path) == expected
    with PartialAnswers(tmp_path, IDENTITY, MACHINE) as partial:
        partial.read(ASKED, batch=BATCH)
        partial.append(ANSWERS[len(expected) :])
    assert kept(tmp_path) == ANSWERS
    remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [1, 40])
def test_half_a_line_costs_its_batch(tmp_path: Path, cut: int) -> None:
    file = written(tmp_path, ANSWERS[:6])
    file.write_bytes(file.read_bytes()[:-cut])
    assert kept(tmp_path) == ANSWERS[:3]
    assert kept(tmp_path) == ANSWERS[:3], "what was cut off is gone from the file as well"


@pytest.mark.parametrize(
    "change",
    [
        {"right": True},
        {"slot_id": "another"},
        {"text": "<answer>8</answer>"},
        {"image": "blank"},
        {"own_best": None, "extra": 1},
        {"own_best": {"body": "7", "right": True, "log_prob": -0.25, "abstention_log_prob": -1.5, "confidence": 0.9}},
    ],
)
def test_a_line_that_is_not_what_its_text_and_question_give_costs_its_batch(
    tmp_path: Path, change: dict[str, object]
) -> None:
    file = written(tmp_path, ANSWERS[:6])
    lines = file.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | change)
    file.write_text("\n".join(lines) + "\n")
    assert kept(tmp_path) == []
    lines = [json.dumps(answer) for answer in (1, 2)]
    file.write_text("\n".join(lines) + "\n")
    assert kept(tmp_path) == []


def test_another_machine_or_evaluation_begins_again(tmp_path: Path) -> None:
    written(tmp_path, ANSWERS[:6])
    machine = replace(MACHINE, code=replace(MACHINE.code, dirty=not MACHINE.code.dirty))
    for identity, where in ((replace(IDENTITY, limit=7), MACHINE), (IDENTITY, machine)):
        with PartialAnswers(tmp_path, identity, where) as partial:
            assert partial.read(ASKED, batch=BATCH) == []
    assert kept(tmp_path) == ANSWERS[:6]
    remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []
