"""The one reward function."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.data.answers import AnswerType, Choice, ParseReason, render_answer
from explicit_learning.plan.typed_plan import Reward
from explicit_learning.rewards import Score, check_columns, score

WEIGHTS = Reward(version="answer/1", answer=1.0, format=0.0, malformed=-1.0)
CHOICES = (Choice(key="A", text="0 to 2"), Choice(key="B", text="3 to 5"))


def scored(text: str, *, gold: str = "7", answer_type: str = "number", terminated: bool = True) -> Score:
    return score(
        text,
        terminated=terminated,
        gold=gold,
        answer_type=AnswerType(answer_type),
        choices=CHOICES if answer_type == "choice" else (),
        weights=WEIGHTS,
    )


@pytest.mark.parametrize(
    ("text", "gold", "answer_type", "total", "branch"),
    [
        ("<answer>7</answer>", "7", "number", 1.0, "number"),
        ("<answer>7.0</answer>\n", "7", "number", 1.0, "number"),
        ("<answer>8</answer>", "7", "number", 0.0, "number"),
        ("<answer></answer>", "7", "number", 0.0, "number"),
        ("<answer></answer>", "", "number", 1.0, "number"),
        ("<answer>0</answer>", "", "number", 0.0, "number"),
        ("<answer>0 TO 2.</answer>", "A", "choice", 1.0, "choice"),
        ("<answer>B</answer>", "A", "choice", 0.0, "choice"),
        ("<answer>yes</answer>", "true", "boolean", 1.0, "boolean"),
        ("7", "7", "number", -1.0, "malformed"),
        ("<answer>7</answer> so", "7", "number", -1.0, "malformed"),
        ("<answer>7", "7", "number", -1.0, "malformed"),
        ("", "7", "number", -1.0, "malformed"),
    ],
)
def test_total_and_branch(text: str, gold: str, answer_type: str, total: float, branch: str) -> None:
    result = scored(text, gold=gold, answer_type=answer_type)
    assert (result.total, result.normaliser_branch) == (total, branch)
    assert result.total == sum(result.components.values())
    assert result.valid == (total >= 0.0)
    assert (result.reason is None) == result.valid
    assert result.in_baseline


def test_truncated_completion_is_rejected_unread() -> None:
    result = scored("<answer>7</answer>", terminated=False)
    assert (result.total, result.reason, result.normaliser_branch) == (
        -1.0,
        "truncated_completion",
        "truncation_reject",
    )
    assert result.parsed_answer is None
    assert not result.valid
    assert not result.in_baseline


def test_reason_is_the_parser_s() -> None:
    assert scored("x<answer>7</answer>").reason == ParseReason.TEXT_OUTSIDE


def test_both_sides_are_recorded_as_compared() -> None:
    result = scored("<answer>50%</answer>", gold="1/2")
    assert (result.normalised_prediction, result.normalised_gold) == ("1/2", "1/2")


def test_weights_are_the_plan_s() -> None:
    weights = Reward(version="answer/1", answer=2.0, format=0.25, malformed=-3.0)

    def total(text: str) -> float:
        return score(text, terminated=True, gold="7", answer_type=AnswerType.NUMBER, choices=(), weights=weights).total

    assert [total("<answer>7</answer>"), total("<answer>8</answer>"), total("8")] == [2.0, 0.25, -3.0]


@given(text=st.text(max_size=80), terminated=st.booleans())
def test_nothing_raises_and_totals_are_of_three_kinds(text: str, terminated: bool) -> None:
    assert scored(text, terminated=terminated).total in {1.0, 0.0, -1.0}


@given(body=st.integers(-999, 999).map(str))
def test_rendered_gold_is_right(body: str) -> None:
    assert scored(render_answer(body), gold=body).total == 1.0


def test_columns_of_another_length_are_refused_by_name() -> None:
    check_columns(2, {"prompts": ["a", "b"], "gold": ["x", "y"]})
    with pytest.raises(ValueError, match=r"2 completions.*'gold': 1"):
        check_columns(2, {"prompts": ["a", "b"], "gold": ["x"]})
