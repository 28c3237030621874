"""Which type fits an answer, what is said of units and separators, and choices whose keys say nothing."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.data.answers import AnswerType, Choice, answers_equal, normalise
from explicit_learning.data.build.answer_types import (
    AnswerCounts,
    AnswerNote,
    Judged,
    body_faults,
    fitting_type,
    judge_row,
    notes_of,
    shuffled,
    with_shuffled_choices,
)
from explicit_learning.data.build.source import SourceImage, SourceRow

COLOURS = tuple(Choice(key=key, text=text) for key, text in zip("ABC", ("red", "green", "blue"), strict=True))
ROW = SourceRow(
    where="f:1", number=0, item_id=None, images=(SourceImage(name="a", data=b"x"),), question="q", answer="red"
)


@pytest.mark.parametrize(
    ("answer", "kind", "notes"),
    [
        ("red", "text", []),
        ("Yes", "boolean", []),
        ("no.", "boolean", []),
        ("TRUE", "boolean", []),
        ("N", "text", []),  # the letter, as often as "no"
        ("y", "text", []),
        ("7", "number", []),
        ("-1.5", "number", []),
        ("50%", "number", []),
        ("1/2", "number", []),
        ("1,000", "number", ["THOUSANDS"]),
        ("12 345", "number", ["THOUSANDS"]),
        ("1.000", "number", ["THOUSANDS_POINT"]),
        ("12.500.000", "text", []),
        ("0.125", "number", []),
        ("1,5", "text", ["DECIMAL_COMMA"]),
        ("1.000,50", "text", ["DECIMAL_COMMA"]),
        ("3 cm", "text", ["UNIT"]),
        ("3cm", "text", ["UNIT"]),
        ("5 km/h", "text", ["UNIT"]),
        ("20 m²", "text", ["UNIT"]),
        ("20 °C", "text", ["UNIT"]),
        ("$5", "text", ["UNIT"]),
        ("5 €", "text", ["UNIT"]),
        ("1,200 kg", "text", ["UNIT", "THOUSANDS"]),
        ("3 red cars", "text", []),
        ("2nd", "text", []),
        ("B12", "text", []),
        ("3:45", "text", []),
    ],
)
def test_the_fitting_type_of_an_answer_and_what_is_told(answer: str, kind: str, notes: list[str]) -> None:
    assert fitting_type(answer) == kind
    assert [note.name for note in notes_of(answer, AnswerType(kind))] == notes


@given(st.text(max_size=20))
def test_every_answer_that_can_be_gold_has_a_type_that_reads_it(answer: str) -> None:
    if not body_faults(answer, place="answer"):
        judged = judge_row(replace(ROW, answer=answer))
        assert isinstance(judged, Judged)
        assert normalise(answer, judged.answer_type) is not None


@pytest.mark.parametrize(
    ("change", "named", "field", "found"),
    [
        ({"answer": "3 cm", "answer_type": "number"}, None, "answer", '"3 cm", which is not a number'),
        ({"answer": "3 cm"}, "number", "answer", '"3 cm", which is not a number'),
        ({"answer": "maybe", "answer_type": "boolean"}, None, "answer", '"maybe", which is not a boolean'),
        ({"answer": "pink", "choices": COLOURS}, None, "answer", '"pink", which is not a choice'),
        ({"answer": "A"}, "choice", "answer_type", "choice without choices"),
        ({"substitute_answer": "Red."}, None, "substitute_answer", '"Red.", which equals the answer "red"'),
        (
            {"answer": "A", "choices": COLOURS, "substitute_answer": "red"},
            None,
            "substitute_answer",
            '"red", which equals the answer "A"',
        ),
        ({"answer": "7", "substitute_answer": "x"}, None, "substitute_answer", '"x", which is not a number'),
    ],
)
def test_answers_that_the_contract_cannot_compare(
    change: dict[str, object], named: str | None, field: str, found: str
) -> None:
    faults = judge_row(replace(ROW, **change), answer_type=named)  # type: ignore[arg-type]
    assert isinstance(faults, tuple)
    assert [(fault.field, fault.found) for fault in faults] == [(field, found)]


def test_a_type_for_all_rows_counts_more_than_a_rows_own() -> None:
    row = replace(ROW, answer="7", answer_type="number")
    assert judge_row(row, answer_type="text") == Judged(answer_type=AnswerType.TEXT, notes=())
    assert judge_row(row, answer_type="auto") == Judged(answer_type=AnswerType.NUMBER, notes=())
    assert judge_row(replace(row, answer_type="text")) == Judged(answer_type=AnswerType.TEXT, notes=())


def test_counts_say_how_many_and_show_the_first_examples() -> None:
    counts = AnswerCounts()
    for answer in ("7", "3 cm", "4 cm", "3 cm", "5 cm", "6 cm", "1,000", "yes"):
        judged = judge_row(replace(ROW, answer=answer))
        assert isinstance(judged, Judged)
        counts.add(answer, judged)
    assert counts.types == {"number": 2, "text": 5, "boolean": 1}
    assert counts.lines() == [
        "number: 2",
        "boolean: 1",
        "text: 5",
        f'5 with {AnswerNote.UNIT.value}: "3 cm", "4 cm", "5 cm"',
        f'1 with {AnswerNote.THOUSANDS.value}: "1,000"',
    ]


# --- shuffled choices ---------------------------------------------------------------------------------------------


def test_a_key_decides_the_permutation() -> None:
    moved = shuffled(COLOURS, key=b"seed 1, row 7")
    assert [choice.key for choice in moved.choices] == ["A", "B", "C"]
    assert [choice.text for choice in moved.choices] == ["blue", "green", "red"]
    assert (moved.renamed, moved.kept) == ({"A": "C", "B": "B", "C": "A"}, None)
    assert shuffled(COLOURS, key=b"seed 1, row 7") == moved


def test_every_permutation_is_drawn_equally_often() -> None:
    drawn = Counter(
        tuple(choice.text for choice in shuffled(COLOURS, key=str(number).encode()).choices) for number in range(6000)
    )
    assert len(drawn) == math.factorial(3)
    # 1,000 each; five standard deviations of a binomial count are 144.
    assert max(abs(count - 1000) for count in drawn.values()) < 144


@given(st.binary(max_size=8), st.sampled_from(["A", "b", "C.", "red", "Green", "blue"]))
def test_the_answer_names_the_same_text_as_before(key: bytes, answer: str) -> None:
    row = replace(ROW, choices=COLOURS, answer=answer, substitute_answer="a")
    changed, kept = with_shuffled_choices(row, key=key)
    assert kept is None

    def meant(one: SourceRow, body: str) -> str:
        return next(
            choice.text for choice in one.choices if choice.key == normalise(body, AnswerType.CHOICE, one.choices)
        )

    assert meant(changed, changed.answer) == meant(row, answer)
    assert changed.substitute_answer is not None
    assert meant(changed, changed.substitute_answer) == "red"
    assert answers_equal(changed.answer, changed.answer, "choice", changed.choices).equal


@pytest.mark.parametrize(
    "last", ["All of the above", "none of the answers above", "Both A and B", "A, B and C", "B & C"]
)
def test_the_order_is_kept_where_a_choice_speaks_of_it(last: str) -> None:
    choices = (*COLOURS, Choice(key="D", text=last))
    for key in (b"1", b"2", b"3"):
        changed, kept = with_shuffled_choices(replace(ROW, choices=choices), key=key)
        assert (changed.choices, kept) == (choices, "a choice speaks of the order or of another choice")


def test_the_order_is_kept_where_a_text_is_a_key() -> None:
    choices = (Choice(key="A", text="A"), Choice(key="B", text="x"))
    assert shuffled(choices, key=b"1").kept == "the text of a choice is a key"


def test_a_row_without_choices_stays() -> None:
    assert with_shuffled_choices(ROW, key=b"1") == (ROW, None)
