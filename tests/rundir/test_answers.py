"""Rates per relation and state."""

from __future__ import annotations

from explicit_learning.data.answers import AnswerType
from explicit_learning.data.rows import ImageRef, Relation, SlotRow, View
from explicit_learning.plan.typed_plan import Reward
from explicit_learning.rewards import score
from explicit_learning.rundir.answers import Answer, Answered, summarise

WEIGHTS = Reward(version="answer/1", answer=1.0, format=0.0, malformed=-1.0)


def _view(role: Relation, state: str) -> View:
    image = ImageRef(image_index=0, path="images/a.png", sha256="0" * 64, width=64, height=64)
    return View(view_id=state, role=role, state=state, images=(image,))


def answered(relation: str, text: str, *, state: str = "state") -> Answer:
    row = SlotRow(
        slot_id="s",
        group_id="g",
        base_id="b",
        split="evaluation",
        question="?",
        choices=(),
        answer_type=AnswerType.NUMBER,
        relation=Relation(relation),
        full_view=_view(Relation.FULL, "original"),
        selected_view=_view(Relation(relation), state),
        full_answer="7",
        substitute_answer="3",
    )
    result = score(text, terminated=True, gold=row.target, answer_type=row.answer_type, choices=(), weights=WEIGHTS)
    return Answered(row=row, text=text, score=result).record()


def _say(body: str) -> str:
    return f"<answer>{body}</answer>"


def test_rates_are_named_for_what_is_right_in_each_relation() -> None:
    summary = summarise(
        [
            answered("FULL", _say("7")),
            answered("FULL", _say("8")),
            answered("CONTROL", _say("7.0")),
            answered("MISSING", _say(""), state="erased"),
            answered("MISSING", _say("7"), state="shuffled"),
            answered("MISSING", _say("2"), state="shuffled"),
            answered("SUBSTITUTE", _say("3")),
            answered("SUBSTITUTE", _say("7")),
            answered("SUBSTITUTE", _say("")),
            answered("SUBSTITUTE", "no block"),
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
    assert set(summarise([answered("FULL", _say("7"))])["relations"]) == {"FULL"}
