"""When two answers are the same."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from explicit_learning.data.equality import AnswerType, Choice, Equality, answers_equal, normalise

SHAPES = (Choice(key="A", text="A circle"), Choice(key="B", text="T-shirt"), Choice(key="C", text="-5"))

texts = st.text(st.characters(exclude_categories=()), max_size=80) | st.from_regex(
    r"[-+]?[0-9., '/%]{0,12}(e[0-9]{1,3})?", fullmatch=True
)
answer_types = st.sampled_from(list(AnswerType))
choice_lists = st.just(SHAPES) | st.lists(st.builds(Choice, key=texts, text=texts), max_size=4).map(tuple)


@given(texts, answer_types, choice_lists)
@example("²", AnswerType.NUMBER, ())
@example("1/0", AnswerType.NUMBER, ())
@example("9" * 5000, AnswerType.NUMBER, ())
@example("1e999", AnswerType.NUMBER, ())
@example("\u0345\u1fb3", AnswerType.TEXT, ())
def test_equality_is_reflexive(body: str, answer_type: AnswerType, choices: tuple[Choice, ...]) -> None:
    assert answers_equal(body, body, answer_type, choices).equal


@given(texts, texts, answer_types, choice_lists)
def test_equality_is_symmetric_and_its_branch_is_the_answer_type(
    a: str, b: str, answer_type: AnswerType, choices: tuple[Choice, ...]
) -> None:
    there, back = answers_equal(a, b, answer_type, choices), answers_equal(b, a, answer_type, choices)
    assert back == Equality(
        equal=there.equal,
        branch=answer_type,
        normalised_a=there.normalised_b,
        normalised_b=there.normalised_a,
    )


@given(texts, answer_types, choice_lists)
def test_an_abstention_equals_only_an_abstention(
    body: str, answer_type: AnswerType, choices: tuple[Choice, ...]
) -> None:
    assert answers_equal("", body, answer_type, choices).equal == (body == "")
    assert (normalise(body, answer_type, choices) == "") == (body == "")


@given(texts, st.sampled_from([AnswerType.NUMBER, AnswerType.BOOLEAN, AnswerType.TEXT]))
@example("the 'the", AnswerType.TEXT)
@example("a a", AnswerType.TEXT)
@example("...", AnswerType.TEXT)
def test_a_canonical_form_is_its_own(body: str, answer_type: AnswerType) -> None:
    form = normalise(body, answer_type)
    if form is not None:
        assert normalise(form, answer_type) in {form, None if len(form) > 128 else form}


@given(st.lists(texts, min_size=3, max_size=3), answer_types)
def test_equality_is_transitive(bodies: list[str], answer_type: AnswerType) -> None:
    a, b, c = bodies
    equal = {pair: answers_equal(*pair, answer_type, SHAPES).equal for pair in itertools.permutations((a, b, c), 2)}
    if equal.get((a, b)) and equal.get((b, c)):
        assert answers_equal(a, c, answer_type, SHAPES).equal


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ("7", "7"),
        ("7.", "7"),
        ("007", "7"),
        ("-0", "0"),
        ("+3", "3"),
        ("\u22123", "-3"),
        ("1,000", "1000"),
        ("1 234 567.5", "2469135/2"),
        ("1'000", "1000"),
        ("1\u202f000", "1000"),
        ("0.1", "1/10"),
        (".5", "1/2"),
        ("50%", "1/2"),
        ("50 %", "1/2"),
        ("1/2", "1/2"),
        ("-3/6", "-1/2"),
        ("\u00bd", "1/2"),
        ("1\u20444", "1/4"),
        ("4e2", "400"),
        ("1E-2", "1/100"),
        ("\u0663", "3"),
        ("\uff17", "7"),
    ],
)
def test_numbers_are_exact(body: str, form: str) -> None:
    assert normalise(body, "number") == form


@pytest.mark.parametrize(
    "body",
    ["seven", "5 cm", "$5", "1,00", "0,123", "1,0000", "1.2.3", "10\u00b2", "1\u00bd", "1/0", "1 2", "--3", "e3", " "],
)
def test_units_and_ambiguous_numerals_are_not_guessed(body: str) -> None:
    assert normalise(body, "number") is None


def test_numbers_compare_by_value_beyond_floating_point() -> None:
    assert answers_equal("0.1", "1/10", "number").equal
    assert not answers_equal("0.30000000000000001", "0.3", "number").equal
    assert not answers_equal("50%", "50", "number").equal


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ("A", "A"),
        ("a", "A"),
        ("(b)", "B"),
        ("B.", "B"),
        ("a  CIRCLE!", "A"),
        ("t shirt", "B"),
        ("T\u2011Shirt", "B"),
        ("-5", "C"),
        ("\u22125", "C"),
        ("5", None),
        ("circle", None),
        ("D", None),
        ("A B", None),
        ("A. A circle", None),
    ],
)
def test_a_choice_is_named_by_key_or_text(body: str, key: str | None) -> None:
    assert normalise(body, "choice", SHAPES) == key


def test_ambiguous_choice_text_is_invalid() -> None:
    choices = (Choice(key="A", text="red"), Choice(key="B", text="Red."), Choice(key="C", text="a"))
    assert normalise("red", "choice", choices) is None
    assert normalise("A", "choice", choices) is None
    assert normalise("B", "choice", choices) == "B"
    assert not answers_equal("red", "A", "choice", choices).equal


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ("The  Cat.", "cat"),
        ("\u201cQuoted\u201d", "quoted"),
        ('the "cat"', "cat"),
        ("on the mat", "on mat"),
        ("vitamin A", "vitamin a"),
        ("the", "the"),
        ("...", "..."),
        ("\ufb01ne", "fine"),
        ("Stra\u00dfe", "strasse"),
        ("C#", "c#"),
        ("-5", "-5"),
        (".5", ".5"),
        ("50%.", "50%"),
        ("don\u2019t", "don't"),
        (" ", None),
    ],
)
def test_text_forms(body: str, form: str | None) -> None:
    assert normalise(body, "text") == form


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ("Yes", "true"),
        ("TRUE.", "true"),
        ("y", "true"),
        ("no!", "false"),
        ("False", "false"),
        ("1", None),
        ("maybe", None),
    ],
)
def test_booleans(body: str, form: str | None) -> None:
    assert normalise(body, "boolean") == form


def test_an_unknown_answer_type_is_a_mistake_of_the_program() -> None:
    with pytest.raises(ValueError, match="colour"):
        answers_equal("a", "b", "colour")
