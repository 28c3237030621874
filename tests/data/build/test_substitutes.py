"""A row lends its evidence to one that asks the same and has another answer."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from explicit_learning.data.answers import AnswerType, Choice
from explicit_learning.data.build.regions import Box
from explicit_learning.data.build.substitutes import (
    Asker,
    NoPaste,
    choose_donor,
    paste,
    paste_refusal,
    question_key,
)

ME = Asker(
    item_id="me",
    question="What colour is the car?",
    answer_type=AnswerType.TEXT,
    answer="red",
    choices=(),
    size=(100, 100),
)
DONOR = replace(ME, item_id="donor", question="what  colour is the CAR", answer="blue", size=(90, 110))
CHOICES = (Choice(key="A", text="red"), Choice(key="B", text="blue"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Which digit is this?", "which DIGIT is this"),
        ("Which digit is this?", " Which  digit\nis this ?"),
        ("What is the total?", "What is total?"),
        ("Ｗhat is it?", "What is it?"),
    ],
)
def test_questions_that_ask_the_same(one: str, other: str) -> None:
    assert question_key(one) == question_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Which digit is this?", "Which letter is this?"),
        ("Is it -5?", "Is it 5?"),
        ("?", "!"),
        ("Is A left of B?", "Is B left of A?"),
    ],
)
def test_questions_that_ask_something_else(one: str, other: str) -> None:
    assert question_key(one) != question_key(other)


def test_a_donor_asks_the_same_and_has_another_answer() -> None:
    assert choose_donor(ME, [ME, DONOR], key=b"") == DONOR


@pytest.mark.parametrize(
    "unfit",
    [
        replace(DONOR, item_id="me"),
        replace(DONOR, question="What colour is the bus?"),
        replace(DONOR, answer="Red."),
        replace(DONOR, answer=""),
        replace(DONOR, answer_type=AnswerType.BOOLEAN),
        replace(DONOR, choices=CHOICES),
        replace(DONOR, size=(50, 100)),
        replace(DONOR, size=(30, 30)),
    ],
)
def test_who_does_not_fit_lends_nothing(unfit: Asker) -> None:
    assert choose_donor(ME, [unfit], key=b"") is None
    assert choose_donor(ME, [unfit, DONOR], key=b"") == DONOR


def test_answers_are_compared_as_the_row_compares_them() -> None:
    me = replace(ME, answer_type=AnswerType.CHOICE, choices=CHOICES, answer="A")
    assert choose_donor(me, [replace(me, item_id="other", answer="red")], key=b"") is None
    other = replace(me, item_id="other", answer="blue")
    assert choose_donor(me, [other], key=b"") == other


def test_the_draw_depends_on_the_key_and_not_on_the_order() -> None:
    donors = [replace(DONOR, item_id=f"donor {index}") for index in range(10)]
    drawn = set()
    for index in range(200):
        key = index.to_bytes(2, "big")
        chosen = choose_donor(ME, donors, key=key)
        order = np.random.default_rng(index).permutation(10)
        assert chosen == choose_donor(ME, [donors[position] for position in order], key=key)
        drawn.add(chosen)
    assert drawn == set(donors)


@pytest.mark.parametrize(
    ("box", "crop", "expected"),
    [
        ((100, 100), (100, 100), None),
        ((100, 100), (100, 150), None),
        ((100, 100), (100, 151), NoPaste.ASPECT),
        ((100, 100), (151, 100), NoPaste.ASPECT),
        ((30, 300), (300, 30), NoPaste.ASPECT),
        ((100, 100), (1000, 1000), None),
        ((99, 99), (33, 33), None),
        ((100, 100), (33, 33), NoPaste.TOO_SMALL),
        ((100, 90), (34, 30), None),
        ((1, 1), (1, 1), None),
    ],
)
def test_shapes_that_fit(box: tuple[int, int], crop: tuple[int, int], expected: NoPaste | None) -> None:
    assert paste_refusal(box, crop) == expected


def test_a_crop_of_the_box_s_size_is_pasted_pixel_for_pixel() -> None:
    generator = np.random.default_rng(0)
    pixels, crop = (generator.integers(256, size=(*size, 3), dtype=np.uint8) for size in ((40, 60), (10, 12)))
    before = pixels.copy()
    pasted = paste(pixels, Box(30, 48, 40, 60), crop)
    assert np.array_equal(pixels, before)
    assert np.array_equal(pasted[30:, 48:], crop)
    pasted[30:, 48:] = pixels[30:, 48:]
    assert np.array_equal(pasted, pixels)


@pytest.mark.parametrize(
    ("size", "digest"),
    [((20, 20), "5bf062625bbc72ab"), ((90, 100), "4790a2470e4fe9b2"), ((64, 48), "97e70bec0180eb08")],
)
def test_resized_crops_have_golden_digests(size: tuple[int, int], digest: str) -> None:
    y, x = np.mgrid[: size[0], : size[1]]
    crop = np.stack([(3 * x + 5 * y) % 256, (x * y) % 256, 255 * ((x // 5 + y // 5) % 2)], -1).astype(np.uint8)
    pasted = paste(np.zeros((64, 64, 3), dtype=np.uint8), Box(4, 6, 54, 60), crop)
    assert not pasted[:4].any()
    assert not pasted[:, 60:].any()
    assert hashlib.sha256(pasted.tobytes()).hexdigest()[:16] == digest


def test_one_colour_stays_one_colour() -> None:
    pasted = paste(np.zeros((64, 64, 3), dtype=np.uint8), Box(0, 0, 50, 60), np.full((99, 88, 3), 77, dtype=np.uint8))
    assert np.unique(pasted[:50, :60]).tolist() == [77]


def test_what_does_not_fit_is_not_pasted() -> None:
    with pytest.raises(ValueError, match="another shape"):
        paste(np.zeros((64, 64, 3), dtype=np.uint8), Box(0, 0, 10, 60), np.zeros((60, 10, 3), dtype=np.uint8))
