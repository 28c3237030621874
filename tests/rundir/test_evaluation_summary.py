"""Rates per relation and state, their intervals, and what is computed of confidence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from scipy.stats import binomtest

from explicit_learning.rundir.answers import Preference
from explicit_learning.rundir.evaluation_summary import summarise, wilson_interval
from tests.support.evaluations import answer_to

if TYPE_CHECKING:
    from explicit_learning.rundir.answers import Answer


def test_rates_are_named_for_what_is_right_in_each_relation() -> None:
    summary = summarise(
        [
            answer_to("FULL", "7"),
            answer_to("FULL", "8"),
            answer_to("CONTROL", "7.0"),
            answer_to("MISSING", "", state="erased"),
            answer_to("MISSING", "7", state="shuffled"),
            answer_to("MISSING", "2", state="shuffled"),
            answer_to("SUBSTITUTE", "3"),
            answer_to("SUBSTITUTE", "7"),
            answer_to("SUBSTITUTE", ""),
            answer_to("SUBSTITUTE", None),
            answer_to("FULL", "7", image="blank"),
        ]
    )
    assert (summary["rows"], summary["malformed"]) == (10, 1)
    relations = summary["relations"]
    assert relations["FULL"]["accuracy"] == 0.5
    assert relations["CONTROL"]["accuracy"] == 1.0
    missing = relations["MISSING"]
    assert (missing["right"], missing["abstained"], missing["said_full_answer"]) == (1, 1, 1)
    assert missing["abstention"] == 1 / 3
    assert missing["interval"] == wilson_interval(1, 3)
    assert {state: block["abstention"] for state, block in missing["states"].items()} == {
        "erased": 1.0,
        "shuffled": 0.0,
    }
    substitute = relations["SUBSTITUTE"]
    assert (substitute["flips"], substitute["abstained"], substitute["said_full_answer"]) == (0.25, 1, 1)
    assert substitute["malformed"] == 1
    assert summary["false_abstention"]["rows"] == 7
    assert summary["false_abstention"]["abstained"] == 1
    assert summary["image_blind"] == {"rows": 1, "right": 1, "rate": 1.0, "interval": wilson_interval(1, 1)}


def test_relation_without_rows_is_left_out() -> None:
    summary = summarise([answer_to("FULL", "7")])
    assert set(summary["relations"]) == {"FULL"}
    nothing = {"rate": None, "interval": None}
    assert summary["consistency"] == {"pairs": 0, "equal": 0, **nothing}
    assert summary["image_blind"] == {"rows": 0, "right": 0, **nothing}
    assert (summary["calibration"], summary["risk_coverage"]) == (None, None)


@pytest.mark.parametrize("of", [1, 7, 50, 400])
def test_intervals_are_wilsons(of: int) -> None:
    for count in range(0, of + 1, max(1, of // 7)):
        expected = binomtest(count, of).proportion_ci(0.95, method="wilson")
        assert wilson_interval(count, of) == pytest.approx([expected.low, expected.high], abs=1e-12)
    assert wilson_interval(0, of)[0] == 0
    assert wilson_interval(of, of)[1] == 1


@pytest.mark.parametrize(
    ("full", "control", "equal"),
    [
        ("7", "7.0", 1),
        ("8", "8", 1),
        ("", "", 1),
        ("7", "8", 0),
        ("7", "", 0),
        (None, None, 0),
        ("x", "x", 1),
        ("x", "y", 0),
    ],
)
def test_pairs_are_consistent_if_both_answers_are_valid_and_the_same(
    full: str | None, control: str | None, equal: int
) -> None:
    others = [answer_to("FULL", "7", group="h"), answer_to("MISSING", "", group="h")]
    found = summarise([answer_to("FULL", full), answer_to("CONTROL", control), *others])["consistency"]
    assert (found["pairs"], found["equal"], found["rate"]) == (1, equal, equal)


def test_a_group_counts_if_every_view_of_it_is_right() -> None:
    whole = [answer_to("FULL", "7"), answer_to("MISSING", "")]
    part = [answer_to("FULL", "7", group="h"), answer_to("SUBSTITUTE", "7", group="h")]
    found = summarise([*whole, *part])["groups"]
    assert (found["groups"], found["all_right"], found["rate"]) == (2, 1, 0.5)


def _judged(*questions: tuple[str, float, bool]) -> list[Answer]:
    """Return answers with a relation, a confidence, and whether the own best answer is that of the full image."""
    return [
        answer_to(
            relation,
            "",
            number=number,
            preference=Preference(
                body="7" if right else "9",
                log_prob=math.log(confidence / (1 - confidence)) - 9.0,
                abstention_log_prob=-9.0,
            ),
        )
        for number, (relation, confidence, right) in enumerate(questions)
    ]


def test_calibration_counts_right_answers_in_bins_of_confidence() -> None:
    answers = _judged(
        ("FULL", 0.95, True), ("CONTROL", 0.91, False), ("MISSING", 0.15, True), ("SUBSTITUTE", 0.5, True)
    )
    found = summarise(answers)["calibration"]
    bins: list[dict[str, Any]] = found["bins"]
    assert [(b["low"], b["high"], b["rows"], b["right"]) for b in bins] == [(0.1, 0.2, 1, 0), (0.9, 1.0, 2, 1)]
    assert bins[1]["confidence"] == pytest.approx(0.93)
    # (1 row x |0 - 0.15| + 2 rows x |0.5 - 0.93|) / 3
    assert found["expected_calibration_error"] == pytest.approx((0.15 + 2 * 0.43) / 3)
    assert found["unmeasured"] == 0


def test_risk_is_counted_from_the_most_confident_answer_on() -> None:
    answers = _judged(("FULL", 0.9, True), ("MISSING", 0.8, True), ("CONTROL", 0.7, True), ("FULL", 0.6, False))
    found = summarise([*answers, answer_to("FULL", "7", number=9)])["risk_coverage"]
    shown = [(p["answered"], p["wrong"], p["coverage"], p["risk"]) for p in found["points"]]
    assert shown == [(1, 0, 0.25, 0.0), (2, 1, 0.5, 0.5), (3, 1, 0.75, 1 / 3), (4, 2, 1.0, 0.5)]
    assert found["points"][1]["threshold"] == pytest.approx(0.8)
    assert found["area"] == pytest.approx((0 + 1 / 2 + 1 / 3 + 2 / 4) / 4)
    # Four abstained, and one answered, right.
    assert found["chosen"] == {"answered": 1, "wrong": 0, "coverage": 0.2, "risk": 0.0}


def test_equal_confidences_are_ordered_by_name_and_not_by_place() -> None:
    answers = _judged(("FULL", 0.5, True), ("MISSING", 0.5, True), ("CONTROL", 0.5, False))
    assert summarise(answers)["risk_coverage"] == summarise(answers[::-1])["risk_coverage"]
