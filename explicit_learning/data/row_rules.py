"""Rules that one row must keep and that a schema cannot say.

A schema knows the form of a field; these rules know what fields mean together: that a box lies inside its image, that
a gold answer can be sampled and compared, that a response says its target. Each fault names the row's id, because a
line number is lost as soon as the file is sorted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

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
from explicit_learning.data.asset_paths import path_problem
from explicit_learning.data.equality import choice_forms
from explicit_learning.data.rows import Relation
from explicit_learning.errors import found_text

if TYPE_CHECKING:
    from explicit_learning.data.rows import ImageRef, SftRow, SlotRow, View

__all__ = ["Report", "check_sft", "check_slot"]


class Report(Protocol):
    """Takes what was found wrong at a pointer of the row at hand."""

    def __call__(self, pointer: str, found: str, expected: str, fix: str) -> None:
        """Take one fault."""


def check_slot(row: SlotRow, report: Report) -> None:
    """Report every rule that a slot row, or an evaluation row, breaks by itself."""
    _check_views(row, report)
    _check_question(row.question, row.choices, report)
    _check_answer("/full_answer", row.full_answer, row, report)
    if row.full_answer == ABSTENTION and row.relation is Relation.MISSING:
        report(
            "/full_answer",
            "an abstention beside a MISSING view",
            "an answer that the full evidence determines",
            "drop the slot: with nothing to answer in FULL, removing evidence changes nothing",
        )
    if row.substitute_answer is not None:
        _check_answer("/substitute_answer", row.substitute_answer, row, report)
        if answers_equal(row.full_answer, row.substitute_answer, row.answer_type, row.choices).equal:
            report(
                "/substitute_answer",
                f"{found_text(row.substitute_answer)}, which equals the full answer {found_text(row.full_answer)}",
                "another answer than the full one",
                "replace the evidence by one that has another answer, or make the view a CONTROL",
            )


def check_sft(row: SftRow, report: Report) -> None:
    """Report every rule that an SFT row breaks by itself."""
    _check_images("/images", row.images, report)
    _check_question(row.question, row.choices, report)
    if row.relation is Relation.SUBSTITUTE and row.target == ABSTENTION:
        report("/target", "an abstention for SUBSTITUTE", "the answer that the new evidence gives", "write that answer")
    _check_answer("/target", row.target, row, report)
    parsed = parse_answer(row.assistant_response)
    if parsed.body is None or row.assistant_response != row.assistant_response.rstrip():
        reason = "trailing white space" if parsed.body is not None else parsed.reason.value
        report(
            "/assistant_response",
            f"{found_text(row.assistant_response)} ({reason})",
            "exactly <answer>BODY</answer>",
            _write_response(row.target),
        )
    elif parsed.body != row.target:
        report(
            "/assistant_response",
            f"a response that says {found_text(parsed.body)}",
            f"one that says the target, {found_text(row.target)}",
            _write_response(row.target),
        )


def _write_response(target: str) -> str:
    if not is_representable(target):
        return "mend the target first"
    return f"write {found_text(render_answer(target))}"


# --- views and images ---------------------------------------------------------------------------------------------


def _check_views(row: SlotRow, report: Report) -> None:
    full, selected = row.full_view, row.selected_view
    if full.role is not Relation.FULL:
        report("/full_view/role", full.role.value, "FULL", "give the group's original view as full_view")
    if selected.role is not row.relation:
        found = f"{selected.role.value} in a slot of relation {row.relation.value}"
        report("/selected_view/role", found, row.relation.value, "make role and relation agree")
    if row.relation is Relation.FULL and selected != full:
        found = "another view than full_view"
        report("/selected_view", found, "the full view, field by field", "repeat full_view here")
    if row.relation is not Relation.FULL and selected.view_id == full.view_id:
        found = f"{found_text(selected.view_id)}, which is the full view's id"
        report("/selected_view/view_id", found, "an id of its own", "rename the view")
    _check_view("/full_view", full, report)
    if selected != full:
        _check_view("/selected_view", selected, report)


def _check_view(pointer: str, view: View, report: Report) -> None:
    _check_images(f"{pointer}/images", view.images, report)
    if view.role is not Relation.FULL and (view.boxes or view.masks):
        found = f"evidence on a {view.role.value} view"
        report(f"{pointer}/evidence", found, "evidence on FULL views only", "remove it, or name the view FULL")
    _check_boxes(f"{pointer}/evidence/boxes", view, report)
    masked = [mask.image_index for mask in view.masks]
    for position, mask in enumerate(view.masks):
        at = f"{pointer}/evidence/masks/{position}"
        if mask.image_index >= len(view.images):
            _report_no_image(f"{at}/image_index", mask.image_index, len(view.images), report)
        if masked.index(mask.image_index) != position:
            found = f"a second mask for image {mask.image_index}"
            report(f"{at}/image_index", found, "one mask an image", "join the masks into one file")
        _check_path(f"{at}/path", mask.path, report)


def _check_boxes(pointer: str, view: View, report: Report) -> None:
    for position, box in enumerate(view.boxes):
        at = f"{pointer}/{position}"
        if box.image_index >= len(view.images):
            _report_no_image(f"{at}/image_index", box.image_index, len(view.images), report)
            continue
        image = view.images[box.image_index]
        for low, high, axis, size in (
            (box.x0, box.x1, "x", image.width),
            (box.y0, box.y1, "y", image.height),
        ):
            if low >= high:
                found = f"an empty box: {axis}0 = {low}, {axis}1 = {high}"
                report(f"{at}/{axis}1", found, f"{axis}0 < {axis}1", "make the box cover the evidence, or remove it")
            elif high > size:
                found = f"{axis}1 = {high} in an image of {image.width} by {image.height} pixels"
                fix = "give the box in pixels of the image as shown, after EXIF rotation"
                report(f"{at}/{axis}1", found, f"at most {size}", fix)


def _report_no_image(pointer: str, index: int, count: int, report: Report) -> None:
    report(pointer, f"image {index} of a view with {count}", f"0 to {count - 1}", "name an image of the same view")


def _check_images(pointer: str, images: tuple[ImageRef, ...], report: Report) -> None:
    for position, image in enumerate(images):
        if image.image_index != position:
            report(
                f"{pointer}/{position}/image_index",
                str(image.image_index),
                str(position),
                "number the images from 0 without gaps, in the order of the prompt",
            )
        _check_path(f"{pointer}/{position}/path", image.path, report)


def _check_path(pointer: str, path: str, report: Report) -> None:
    problem = path_problem(path)
    if problem:
        report(pointer, *problem)


# --- questions and answers ----------------------------------------------------------------------------------------


def _check_question(question: str, choices: tuple[Choice, ...], report: Report) -> None:
    if not question.strip():
        report("/question", "a blank question", "a question", "write the question")
    for pointer, found, expected, fix in _choice_problems(choices):
        report(pointer, found, expected, fix)


@lru_cache(maxsize=4096)
def _choice_problems(choices: tuple[Choice, ...]) -> tuple[tuple[str, str, str, str], ...]:
    """Return what is wrong with a question's choices; all rows of a group share them, hence the cache."""
    problems = []
    forms = [choice_forms(choice) for choice in choices]
    for position, (choice, (key, text)) in enumerate(zip(choices, forms, strict=True)):
        at = f"/choices/{position}"
        if not choice.text.strip() or not choice.text.isprintable():
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
                fix = "choose keys that are no choice's text, such as A, B, C"
                problems.append((f"{at}/text", found, "texts that are no other choice's key", fix))
    return tuple(problems)


def _check_answer(pointer: str, body: str, row: SlotRow | SftRow, report: Report) -> None:
    if not is_representable(body):
        report(
            pointer,
            f"{found_text(body)}, which no response can say",
            "0 to 64 characters without <, >, control characters or line breaks",
            "shorten or reword the answer, or drop the row",
        )
    elif normalise(body, row.answer_type, row.choices) is None:
        expected, fix = _READABLE[row.answer_type]
        report(pointer, f"{found_text(body)}, which is no {row.answer_type.value}", expected, fix)


_READABLE = {
    AnswerType.CHOICE: ("the key or the text of exactly one choice", "write the right choice's key"),
    AnswerType.NUMBER: ("a number such as 7, -1.5, 1,000, 50% or 1/2", "write the bare number, or change answer_type"),
    AnswerType.BOOLEAN: ("yes, no, true or false", "write one of these, or change answer_type"),
    AnswerType.TEXT: ("text that is not blank", "write the answer, or leave it empty for an abstention"),
}
