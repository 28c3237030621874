"""What an answer's row says, and what is asked."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from explicit_learning.rundir.answers import (
    Asked,
    OwnBest,
    Preference,
    again,
    answered,
    asked_of,
    confidence_of,
    parsed_fields,
)
from tests.support.evaluations import answer_to, question


@pytest.mark.parametrize("text", ["<answer>7</answer>", "<answer></answer>", "<answer>7", "", "7"])
@pytest.mark.parametrize("terminated", [True, False])
def test_what_is_parsed_again_is_what_was_scored(text: str, terminated: bool) -> None:
    scored = answered(Asked(row=question("FULL")), text, terminated=terminated).record()
    assert {name: getattr(scored, name) for name in parsed_fields(scored)} == parsed_fields(scored)
    assert parsed_fields(scored)["valid"] == (terminated and text.endswith("</answer>"))


def test_rows_are_asked_in_their_order_and_full_ones_again_without_images() -> None:
    rows = [question(name, number=number) for number, name in enumerate(("CONTROL", "FULL", "MISSING", "FULL"))]
    asked = asked_of(rows)
    assert [(each.row.slot_id, each.image) for each in asked] == [
        ("slot-0", "shown"),
        ("slot-1", "shown"),
        ("slot-2", "shown"),
        ("slot-3", "shown"),
        ("slot-1", "blank"),
        ("slot-3", "blank"),
    ]


def test_a_limit_draws_groups_by_name_so_that_a_smaller_one_asks_a_part_of_a_larger_ones() -> None:
    rows = [question(name, number=n, group=f"group-{n // 2}") for n in range(40) for name in ("FULL", "MISSING")]

    def groups(limit: int | None) -> set[str]:
        return {each.row.group_id for each in asked_of(rows, limit=limit)}

    drawn = [groups(limit) for limit in range(1, 21)]
    assert [len(found) for found in drawn] == list(range(1, 21))
    assert all(smaller < larger for smaller, larger in pairwise(drawn))
    assert groups(None) == groups(20) == groups(1000) == {f"group-{n}" for n in range(20)}
    assert groups(5) != {f"group-{n}" for n in range(5)}, "not the first ones of the file"
    backwards = asked_of(rows[::-1], limit=5)
    assert {each.row.group_id for each in backwards} == groups(5), "whatever their order is"
    shown = [each.row for each in asked_of(rows, limit=5) if each.image == "shown"]
    assert shown == [row for row in rows if row.group_id in groups(5)], "all rows of a group, in the file's order"


@pytest.mark.parametrize(
    ("log_prob", "abstention", "expected"),
    [(-1.0, -1.0, 0.5), (0.0, -math.log(3), 0.75), (-1e4, 0.0, 0.0), (0.0, -1e4, 1.0)],
)
def test_confidence_is_the_probability_of_the_answer_against_the_abstention(
    log_prob: float, abstention: float, expected: float
) -> None:
    assert confidence_of(log_prob, abstention) == pytest.approx(expected, abs=1e-12)


def test_a_models_own_best_answer_is_scored_as_the_target_and_its_confidence_is_not() -> None:
    preference = Preference(body="7.0", log_prob=-1.0, abstention_log_prob=-3.0)
    full, missing = (answer_to(name, "", preference=preference).own_best for name in ("FULL", "MISSING"))
    expected = OwnBest(
        body="7.0", right=True, log_prob=-1.0, abstention_log_prob=-3.0, confidence=1 / (1 + math.exp(-2.0))
    )
    assert full == expected
    assert missing == replace(expected, right=False)
    assert answer_to("FULL", "7").own_best is None


@pytest.mark.parametrize("preference", [None, Preference(body="3", log_prob=-1.0, abstention_log_prob=-3.0)])
@pytest.mark.parametrize("body", ["7", "3", "", None])
def test_an_answer_is_scored_again_as_it_was(body: str | None, preference: Preference | None) -> None:
    answer = answer_to("SUBSTITUTE", body, preference=preference, image="blank")
    assert again(answer, Asked(row=question("SUBSTITUTE"), image="blank")).record() == answer
    assert again(answer, Asked(row=question("FULL"), image="blank")).record() != answer
