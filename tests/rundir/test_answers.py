"""Rates per relation and state."""

from __future__ import annotations

import pytest

from explicit_learning.rundir.answers import Answer, answered, parsed_fields, summarise
from tests.support.evaluations import question


def answer(relation: str, text: str, *, state: str = "state") -> Answer:
    return answered(question(relation, state=state), text, terminated=True).record()


def _say(body: str) -> str:
    return f"<answer>{body}</answer>"


def test_rates_are_named_for_what_is_right_in_each_relation() -> None:
    summary = summarise(
        [
            answer("FULL", _say("7")),
            answer("FULL", _say("8")),
            answer("CONTROL", _say("7.0")),
            answer("MISSING", _say(""), state="erased"),
            answer("MISSING", _say("7"), state="shuffled"),
            answer("MISSING", _say("2"), state="shuffled"),
            answer("SUBSTITUTE", _say("3")),
            answer("SUBSTITUTE", _say("7")),
            answer("SUBSTITUTE", _say("")),
            answer("SUBSTITUTE", "no block"),
        ]
    )
    assert (summary["rows"], summary["malformed"]) == (10, 1)
    relations = summary["relations"]
    assert relations["FULL"]["accuracy"] == 0.5
    assert relations["CONTROL"]["accuracy"] == 1.0
    missing = relations["MISSING"]
    assert (missing["right"], missing["abstained"], missing["said_full_answer"]) == (1, 1, 1)
    assert missing["abstention"] == 1 / 3
    assert {state: block["abstention"] for state, block in missing["states"].items()} == {
        "erased": 1.0,
        "shuffled": 0.0,
    }
    substitute = relations["SUBSTITUTE"]
    assert (substitute["flips"], substitute["abstained"], substitute["said_full_answer"]) == (0.25, 1, 1)


def test_relation_without_rows_is_left_out() -> None:
    assert set(summarise([answer("FULL", _say("7"))])["relations"]) == {"FULL"}


@pytest.mark.parametrize("text", ["<answer>7</answer>", "<answer></answer>", "<answer>7", "", "7"])
@pytest.mark.parametrize("terminated", [True, False])
def test_what_is_parsed_again_is_what_was_scored(text: str, terminated: bool) -> None:
    scored = answered(question("FULL"), text, terminated=terminated).record()
    assert {name: getattr(scored, name) for name in parsed_fields(scored)} == parsed_fields(scored)
    assert parsed_fields(scored)["valid"] == (terminated and text.endswith("</answer>"))
