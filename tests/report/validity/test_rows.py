"""Rows of the study: what they hold of a run, and that they are of one run each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import Refusal
from explicit_learning.report.compare.measures import ItemCount, measured
from explicit_learning.report.validity.rows import merged, read_study, row_of_run, write_study
from explicit_learning.rundir.answers import Preference
from tests.support.evaluations import answer_to, evaluate_run
from tests.support.finished_run import Run, sft_document
from tests.support.lifecycle import finish
from tests.support.validity import STUDY_ROW

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.rundir.answers import Answer

PREFERENCE = Preference(body="7", log_prob=-0.5, abstention_log_prob=-2.5)
SETTINGS = "5" * 64
GROUPS = [f"group-{number}" for number in range(6)]
RIGHT = (0, 2, 3, 4)  # groups whose FULL question is answered right: 101110, filled up to 1011 1000


def answers() -> list[Answer]:
    return [
        answer_to(
            relation,
            "7" if relation == "FULL" and number in RIGHT else ("" if relation == "MISSING" else "9"),
            number=10 * number + place,
            group=group,
            preference=None if image == "blank" else PREFERENCE,
            image=image,
        )
        for number, group in enumerate(GROUPS)
        for place, (relation, image) in enumerate((("FULL", "shown"), ("MISSING", "shown"), ("FULL", "blank")))
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run.of(tmp_path_factory.mktemp("finished") / "run", sft_document())
    run.prepare()
    run.checkpoint(3)
    assert finish(run) == 0
    return run.folder


def test_a_row_holds_on_which_items_a_run_was_right(run: Path) -> None:
    row = row_of_run("certificate", SETTINGS, run, evaluate_run(run, answers=answers()))
    assert (row.study, row.arm, row.seed, row.items) == ("certificate", "sft_certificate", 0, 6)
    assert row.right == {
        "full_accuracy": "b8",
        "missing_abstention:state": "fc",
        "all_relations_right": "b8",
    }
    assert row.image_blind == len(RIGHT) / len(GROUPS)
    found = row.measured()
    assert found["full_accuracy"] == {f"{place}": ItemCount(right=place in RIGHT, rows=1) for place in range(6)}
    by_group = measured(answers())
    assert {name: list(counts.values()) for name, counts in found.items()} == {
        name: list(counts.values()) for name, counts in by_group.items()
    }


def test_a_row_of_the_base_model_has_nothing_that_was_trained(run: Path) -> None:
    row = row_of_run("certificate", SETTINGS, run, evaluate_run(run, "base", answers=answers()), of_base=True)
    assert (row.arm, row.adapter_tensors_sha256, row.optimizer_steps, row.sampled_tokens) == ("base", None, 0, None)


def test_an_evaluation_without_confidence_or_with_several_rows_of_an_item_is_refused(run: Path) -> None:
    without = [replace(answer, own_best=None) for answer in answers()]
    twice = [*answers(), answer_to("FULL", "7", number=99, group=GROUPS[0], preference=PREFERENCE)]
    for changed, found in ((without, "without confidence"), (twice, "other rows")):
        with pytest.raises(Refusal, match=found):
            row_of_run("certificate", SETTINGS, run, evaluate_run(run, answers=changed))


def test_rows_are_kept_in_order_and_replaced_by_newer_ones_of_the_same_run(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert read_study(file) == []
    later, other = replace(STUDY_ROW, seed=1), replace(STUDY_ROW, study="answer")
    write_study(file, merged([later], [STUDY_ROW, other]))
    assert read_study(file) == [other, STUDY_ROW, later]
    again = replace(STUDY_ROW, items=7)
    assert merged(read_study(file), [again]) == [other, again, later]


def test_two_rows_of_a_run_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write_study(file, [STUDY_ROW, STUDY_ROW])
    with pytest.raises(Refusal, match="two rows of certificate answer_grpo seed 0"):
        read_study(file)


@pytest.mark.parametrize(
    "change",
    [
        {"items_sha256": "1" * 64},
        {"evaluation_manifest_sha256": "1" * 64},
        {"engine": "vllm"},
        {"settings_sha256": "1" * 64},
    ],
)
def test_rows_of_a_study_that_cannot_be_compared_are_refused(change: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write_study(file, [STUDY_ROW, replace(STUDY_ROW, seed=STUDY_ROW.seed + 1, **change)])  # type: ignore[arg-type] # fields by name
    with pytest.raises(Refusal, match="2 kinds of settings, questions or engine"):
        read_study(file)
