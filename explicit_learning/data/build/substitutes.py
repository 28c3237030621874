"""SUBSTITUTE by pasting: which row lends its evidence, and how that takes the place of another's.

Two rows that ask the same and have different answers show what the answer depends on. The crop around the evidence of
one, put where the other's evidence was, makes an image to which the first one's answer is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from explicit_learning.data.answers import AnswerType, answers_equal, normalise
from explicit_learning.data.keys import keyed_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from explicit_learning.data.answers import Choice
    from explicit_learning.data.build.regions import Box

    Pixels = NDArray[np.uint8]

__all__ = [
    "MAX_ASPECT_FACTOR",
    "MAX_ENLARGEMENT",
    "Asker",
    "NoPaste",
    "choose_donor",
    "paste",
    "paste_refusal",
    "question_key",
]

_DOMAIN = "explicit-learning/substitute-donor/1"

# By how much the crop's ratio of width to height may differ from the box's: more distorts what it shows.
MAX_ASPECT_FACTOR = 1.5
# By how much a crop's sides may be enlarged: more blurs what it shows.
MAX_ENLARGEMENT = 3


class NoPaste(StrEnum):
    """Why a crop cannot take the place of a box."""

    ASPECT = f"the donor's evidence has another shape (by a factor above {MAX_ASPECT_FACTOR})"
    TOO_SMALL = f"the donor's evidence is too small (it would be enlarged more than {MAX_ENLARGEMENT} times)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A row that may lend its evidence, or is lent another's.

    Attributes:
        item_id: Its id.
        question: The question as it is asked.
        answer_type: How its answers are compared.
        answer: The full answer's body.
        choices: The choices, empty for an open question.
        size: Height and width of the box around its evidence, which lies in one image. Unit: pixels.
    """

    item_id: str
    question: str
    answer_type: AnswerType
    answer: str
    choices: tuple[Choice, ...]
    size: tuple[int, int]


def question_key(question: str) -> str:
    """Return what two questions that ask the same have in common: the question as the answer type ``text`` reads it.

    Case, white space, articles and outer punctuation do not count.
    """
    return normalise(question, AnswerType.TEXT) or question


def choose_donor(recipient: Asker, candidates: Iterable[Asker], *, key: bytes) -> Asker | None:
    """Return whose evidence a row is lent, drawn by the key among those that fit; ``None`` if none does.

    A donor asks the same question with the same choices and answer type, has another answer, and its evidence fits in
    size (`paste_refusal`). The order of the candidates means nothing. They are to be of the recipient's own split: a
    pasted crop carries pixels from one row to the other.

    Args:
        recipient: The row whose evidence is replaced; it may be among the candidates.
        candidates: Rows that may lend theirs.
        key: What the draw depends on; each candidate's id is added to it.
    """
    fitting = (candidate for candidate in candidates if _fits(recipient, candidate))
    return min(
        fitting,
        key=lambda candidate: (keyed_digest(_DOMAIN, key.hex(), candidate.item_id), candidate.item_id),
        default=None,
    )


def _fits(recipient: Asker, candidate: Asker) -> bool:
    kind, choices = recipient.answer_type, recipient.choices
    return (
        candidate.item_id != recipient.item_id
        and (candidate.answer_type, candidate.choices) == (kind, choices)
        and question_key(candidate.question) == question_key(recipient.question)
        and bool(candidate.answer)
        and not answers_equal(candidate.answer, recipient.answer, kind, choices).equal
        and paste_refusal(recipient.size, candidate.size) is None
    )


def paste_refusal(box: tuple[int, int], crop: tuple[int, int]) -> NoPaste | None:
    """Return why a crop of a size cannot take the place of a box of a size; ``None`` if it can.

    Args:
        box: Height and width, in pixels.
        crop: Height and width, in pixels.
    """
    one, other = box[0] * crop[1], box[1] * crop[0]
    if max(one, other) > MAX_ASPECT_FACTOR * min(one, other):
        return NoPaste.ASPECT
    if any(side > MAX_ENLARGEMENT * donor for side, donor in zip(box, crop, strict=True)):
        return NoPaste.TOO_SMALL
    return None


def paste(pixels: Pixels, box: Box, crop: Pixels) -> Pixels:
    """Return the image with a crop in the place of a box, resized to it.

    Pillow's resize computes with fixed-point weights, so it gives the same bytes on every machine.

    Args:
        pixels: RGB; shape (height, width, 3).
        box: Where the recipient's evidence is, inside the image.
        crop: The donor's evidence; shape (height, width, 3).

    Raises:
        ValueError: If the crop does not fit, as `paste_refusal` says.
    """
    from PIL import Image

    if refusal := paste_refusal((box.height, box.width), (crop.shape[0], crop.shape[1])):
        raise ValueError(refusal)
    resized = Image.fromarray(crop).resize((box.width, box.height), Image.Resampling.BICUBIC)
    result = pixels.copy()
    box.of(result)[:] = np.asarray(resized)
    return result
