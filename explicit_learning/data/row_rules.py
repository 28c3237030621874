"""Rules that one row must keep and that a schema cannot express.

A schema checks each field alone. These rules compare fields: a box lies inside its image, a gold answer can be sampled
and compared, a response holds its target. Each fault names the row's id, because line numbers change when the file is
sorted.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

from explicit_learning.data.answers import (
    ABSTENTION,
    AnswerType,
    Choice,
    answers_equal,
    is_representable,
    normalise,
    parse_answer,
    render_answer,
)
from explicit_learning.data.asset_paths import path_fault
from explicit_learning.data.equality import choice_forms
from explicit_learning.data.rows import Relation
from explicit_learning.errors import found_text
from explicit_learning.errors.invisible import invisible_characters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.data.rows import ImageRef, SftRow, SlotRow, View
    from explicit_learning.errors import Context, Fault

__all__ = ["answer_faults", "choice_problems", "sft_row_faults", "slot_row_faults", "unseen"]


def slot_row_faults(row: SlotRow, at: Context) -> Iterator[Fault]:
    """Yield a fault for every rule that a slot row, or an evaluation row, breaks by itself."""
    yield from _view_pair_faults(row, at)
    yield from _question_faults(row.question, row.choices, at)
    yield from answer_faults("/full_answer", row.full_answer, row.answer_type, row.choices, at)
    if row.full_answer == ABSTENTION and row.relation is Relation.MISSING:
        yield at.fault(
            pointer="/full_answer",
            found="an abstention beside a MISSING view",
            expected="an answer that the full evidence determines",
            fix="drop the slot: with nothing to answer in FULL, removing evidence changes nothing",
        )
    if row.substitute_answer is not None:
        yield from answer_faults("/substitute_answer", row.substitute_answer, row.answer_type, row.choices, at)
        if answers_equal(row.full_answer, row.substitute_answer, row.answer_type, row.choices).equal:
            substitute, full = found_text(row.substitute_answer), found_text(row.full_answer)
            yield at.fault(
                pointer="/substitute_answer",
                found=f"{substitute}, which equals the full answer {full}",
                expected="another answer than the full one",
                fix="replace the evidence by one that has another answer, or make the view a CONTROL",
            )


def sft_row_faults(row: SftRow, at: Context) -> Iterator[Fault]:
    """Yield a fault for every rule that an SFT row breaks by itself."""
    yield from _image_faults("/images", row.images, at)
    yield from _question_faults(row.question, row.choices, at)
    if row.relation is Relation.SUBSTITUTE and row.target == ABSTENTION:
        found, expected = "an abstention for SUBSTITUTE", "the answer that the new evidence gives"
        yield at.fault(pointer="/target", found=found, expected=expected, fix="write that answer")
    yield from answer_faults("/target", row.target, row.answer_type, row.choices, at)
    pointer, response = "/assistant_response", row.assistant_response
    right = is_representable(row.target)
    fix = f"write {found_text(render_answer(row.target))}" if right else "correct the target first"
    parsed = parse_answer(response)
    if parsed.body is None or response != response.rstrip():
        reason = "trailing white space" if parsed.body is not None else parsed.reason.value
        found, expected = f"{found_text(response)} ({reason})", "exactly <answer>BODY</answer>"
        yield at.fault(pointer=pointer, found=found, expected=expected, fix=fix)
    elif parsed.body != row.target:
        found = f"a response with the answer {found_text(parsed.body)}"
        expected = f"one with the target, {found_text(row.target)}"
        yield at.fault(pointer=pointer, found=found, expected=expected, fix=fix)


# --- views and images ---------------------------------------------------------------------------------------------


def _view_pair_faults(row: SlotRow, at: Context) -> Iterator[Fault]:
    full, selected = row.full_view, row.selected_view
    if full.role is not Relation.FULL:
        fix = "give the group's original view as full_view"
        yield at.fault(pointer="/full_view/role", found=full.role.value, expected="FULL", fix=fix)
    if selected.role is not row.relation:
        found, fix = f"{selected.role.value} in a slot of relation {row.relation.value}", "make role and relation agree"
        yield at.fault(pointer="/selected_view/role", found=found, expected=row.relation.value, fix=fix)
    if row.relation is Relation.FULL and selected != full:
        found, expected = "another view than full_view", "the full view, field by field"
        yield at.fault(pointer="/selected_view", found=found, expected=expected, fix="repeat full_view here")
    if row.relation is not Relation.FULL and selected.view_id == full.view_id:
        found, expected = f"{found_text(selected.view_id)}, which is the full view's id", "an id of its own"
        yield at.fault(pointer="/selected_view/view_id", found=found, expected=expected, fix="rename the view")
    yield from _view_faults("/full_view", full, at)
    if selected != full:
        yield from _view_faults("/selected_view", selected, at)


def _view_faults(pointer: str, view: View, at: Context) -> Iterator[Fault]:
    yield from _image_faults(f"{pointer}/images", view.images, at)
    if view.role is not Relation.FULL and (view.boxes or view.masks):
        found, fix = f"evidence on a {view.role.value} view", "remove it, or name the view FULL"
        yield at.fault(pointer=f"{pointer}/evidence", found=found, expected="evidence on FULL views only", fix=fix)
    yield from _box_faults(f"{pointer}/evidence/boxes", view, at)
    masked = [mask.image_index for mask in view.masks]
    for position, mask in enumerate(view.masks):
        place = f"{pointer}/evidence/masks/{position}"
        if mask.image_index >= len(view.images):
            yield _no_such_image(f"{place}/image_index", mask.image_index, view, at)
        if masked.index(mask.image_index) != position:
            found, fix = f"a second mask for image {mask.image_index}", "join the masks into one file"
            yield at.fault(pointer=f"{place}/image_index", found=found, expected="one mask per image", fix=fix)
        if fault := path_fault(mask.path, at, f"{place}/path"):
            yield fault


def _box_faults(pointer: str, view: View, at: Context) -> Iterator[Fault]:
    for position, box in enumerate(view.boxes):
        place = f"{pointer}/{position}"
        if box.image_index >= len(view.images):
            yield _no_such_image(f"{place}/image_index", box.image_index, view, at)
            continue
        image = view.images[box.image_index]
        for low, high, axis, size in (
            (box.x0, box.x1, "x", image.width),
            (box.y0, box.y1, "y", image.height),
        ):
            edge = f"{place}/{axis}1"
            if low >= high:
                found = f"an empty box: {axis}0 = {low}, {axis}1 = {high}"
                fix = "make the box cover the evidence, or remove it"
                yield at.fault(pointer=edge, found=found, expected=f"{axis}0 < {axis}1", fix=fix)
            elif high > size:
                found = f"{axis}1 = {high} in an image of {image.width} by {image.height} pixels"
                fix = "give the box in pixels of the image as shown, after EXIF rotation"
                yield at.fault(pointer=edge, found=found, expected=f"at most {size}", fix=fix)


def _no_such_image(pointer: str, index: int, view: View, at: Context) -> Fault:
    found, expected = f"image {index} of a view with {len(view.images)}", f"0 to {len(view.images) - 1}"
    return at.fault(pointer=pointer, found=found, expected=expected, fix="name an image of the same view")


def _image_faults(pointer: str, images: tuple[ImageRef, ...], at: Context) -> Iterator[Fault]:
    for position, image in enumerate(images):
        if image.image_index != position:
            yield at.fault(
                pointer=f"{pointer}/{position}/image_index",
                found=str(image.image_index),
                expected=str(position),
                fix="number the images from 0 without gaps, in the order of the prompt",
            )
        if fault := path_fault(image.path, at, f"{pointer}/{position}/path"):
            yield fault


# --- questions and answers ----------------------------------------------------------------------------------------


def _question_faults(question: str, choices: tuple[Choice, ...], at: Context) -> Iterator[Fault]:
    if not question.strip():
        yield at.fault(pointer="/question", found="a blank question", expected="a question", fix="write the question")
    for pointer, found, expected, fix in choice_problems(choices):
        yield at.fault(pointer=pointer, found=found, expected=expected, fix=fix)


@lru_cache(maxsize=4096)
def choice_problems(choices: tuple[Choice, ...]) -> tuple[tuple[str, str, str, str], ...]:
    """Return pointer, found, expected and fix of each problem; all rows of a group share their choices."""
    problems = []
    forms = [choice_forms(choice) for choice in choices]
    for position, (choice, (key, text)) in enumerate(zip(choices, forms, strict=True)):
        at = f"/choices/{position}"
        if hidden := unseen(choice.text):
            problems.append((f"{at}/text", hidden, VISIBLE, TYPE_AGAIN))
        elif not choice.text.strip() or not choice.text.isprintable():
            fix = "write the choice on one line, without control characters"
            problems.append((f"{at}/text", found_text(choice.text), "one line of text", fix))
        for earlier, (other_key, other_text) in enumerate(forms[:position]):
            if key == other_key:
                found = f"the key {found_text(choice.key)}, which choice {earlier} has already"
                problems.append((f"{at}/key", found, "keys that differ, not only in case", "rename the key"))
            if text == other_text:
                found = f"{found_text(choice.text)}, which normalises to the text of choice {earlier}"
                problems.append((f"{at}/text", found, "texts that differ after normalisation", "remove one of the two"))
        for other, (other_key, _) in enumerate(forms):
            if other != position and text == other_key:
                found = f"{found_text(choice.text)}, which is also the key of choice {other}"
                fix = "choose keys that are not the text of a choice, such as A, B, C"
                problems.append((f"{at}/text", found, "a text that is not another choice's key", fix))
    return tuple(problems)


def answer_faults(
    pointer: str, body: str, answer_type: AnswerType, choices: tuple[Choice, ...], at: Context
) -> Iterator[Fault]:
    """Yield a fault if no response can hold an answer, or if it cannot be read as an answer of its type."""
    if not is_representable(body):
        yield at.fault(
            pointer=pointer,
            found=f"{found_text(body)}, which a response cannot hold",
            expected="0 to 64 characters without <, >, control characters or line breaks",
            fix="shorten or reword the answer, or drop the row",
        )
    elif hidden := unseen(body):
        yield at.fault(pointer=pointer, found=hidden, expected=VISIBLE, fix=TYPE_AGAIN)
    elif normalise(body, answer_type, choices) is None:
        what, expected, fix = _READABLE[answer_type]
        yield at.fault(pointer=pointer, found=f"{found_text(body)}, which is not {what}", expected=expected, fix=fix)


VISIBLE = "characters that can be seen: texts that look the same must be the same"
TYPE_AGAIN = "remove the invisible characters, for example by typing the text again"


def unseen(text: str) -> str | None:
    """Return which invisible characters a text holds, or ``None``."""
    hidden = invisible_characters(text)
    if not hidden:
        return None
    names = ", ".join(f"U+{ord(one):04X} ({unicodedata.name(one, 'unassigned')})" for one in hidden)
    return f"{found_text(text)} with {names}"


_READABLE = {
    AnswerType.CHOICE: ("a choice", "the key or the text of exactly one choice", "write the right choice's key"),
    AnswerType.NUMBER: (
        "a number",
        "a number such as 7, -1.5, 1,000, 50% or 1/2",
        "write the bare number, or change answer_type",
    ),
    AnswerType.BOOLEAN: ("a boolean", "yes, no, true or false", "write one of these, or change answer_type"),
    AnswerType.TEXT: ("text", "text that is not blank", "write the answer, or leave it empty for an abstention"),
}
