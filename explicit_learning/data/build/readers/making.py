"""Makes typed rows of a source's own, whatever form they came in, and checks every text and path of them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from explicit_learning.data.answers import AnswerType, Choice, normalise
from explicit_learning.data.build.answer_types import AUTO, body_faults, fitting_type
from explicit_learning.data.build.readers.evidence import read_boxes, read_masks
from explicit_learning.data.build.readers.mapping import AmbiguousError, NotJsonError
from explicit_learning.data.build.readers.seen import Seen
from explicit_learning.data.build.source import RefusedRow, RowFault, SourceBox, SourceImage, SourceRow
from explicit_learning.data.control_tokens import known_control_token
from explicit_learning.data.row_rules import VISIBLE, choice_problems, unseen
from explicit_learning.errors import found_text
from explicit_learning.files.schema import load_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from explicit_learning.data.build.readers.image_names import ImageNames
    from explicit_learning.data.build.readers.mapping import FieldMap
    from explicit_learning.data.build.source import BoxFormat

__all__ = ["MAX_NAME_CHARACTERS", "Record", "RowMaker"]

MAX_NAME_CHARACTERS = 128  # of a row's id and of its split
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Line breaks and tabs may stand in a question; no other control character.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A row as its form holds it.

    Attributes:
        where: Its place, for people.
        place: Its place as a number that the form's reader can put into words again: its line, or its row.
        number: Its number among all rows of the source, from 0.
        value: Its fields; empty beside faults.
        faults: Why it could not be read.
        is_named: Whether unknown fields are probably misspelt ones: in forms whose fields this program names.
    """

    where: str
    place: int
    number: int
    value: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[RowFault, ...] = ()
    is_named: bool = False


class RowMaker:
    """Makes the rows of one reading of a source, and remembers which ids and questions it has seen."""

    def __init__(
        self, fields: FieldMap, *, images: ImageNames, box_format: BoxFormat, words: Callable[[int], str]
    ) -> None:
        """Take what all rows have in common.

        Args:
            fields: Where each field comes from.
            images: Finds the images.
            box_format: What the numbers of boxes mean.
            words: Puts the place of an earlier record into words.
        """
        self._fields = fields
        self._images = images
        self._box_format = box_format
        self._words = words
        self._ids = Seen()
        self._questions = Seen()

    def make(self, record: Record) -> SourceRow | RefusedRow:
        """Return a record as a row, or everything that is wrong with it. No value raises."""
        making = _Making(record, self._fields, self._images, self._box_format)
        row = making.row()
        if row is not None:
            making.faults += self._repetitions(row)
        if row is None or making.faults:
            return RefusedRow(
                where=record.where, number=record.number, item_id=making.item_id, faults=tuple(making.faults)
            )
        self._note(row, record.place)
        return row

    def _repetitions(self, row: SourceRow) -> list[RowFault]:
        faults = []
        if row.item_id is not None and (earlier := self._ids.find(row.item_id)):
            found = f"{found_text(row.item_id)}, which {self._words(earlier.place)} has already"
            place = self._fields.first_place("id")
            faults.append(RowFault(field=place, found=found, expected="an id of its own"))
        earlier = self._questions.find(_question_key(row), _answer_key(row))
        if earlier and not earlier.is_same:
            found = f"{found_text(row.answer)}, but {self._words(earlier.place)} answers the same question otherwise"
            expected = "one right answer to one question about the same images"
            faults.append(RowFault(field="answer", found=found, expected=expected))
        return faults

    def _note(self, row: SourceRow, place: int) -> None:
        if row.item_id is not None:
            self._ids.note(row.item_id, place)
        if self._questions.find(_question_key(row)) is None:
            self._questions.note(_question_key(row), place, _answer_key(row))


def _question_key(row: SourceRow) -> list[Any]:
    images = [str(image.path) if image.data is None else hashlib.sha256(image.data).hexdigest() for image in row.images]
    return [images, row.question, [[choice.key, choice.text] for choice in row.choices]]


def _answer_key(row: SourceRow) -> list[str | None]:
    kind = fitting_type(row.answer, row.choices) if row.answer_type == AUTO else AnswerType(row.answer_type)
    form = normalise(row.answer, kind, row.choices)
    return [form if form is not None else row.answer]


class _Making:
    """The making of one row; faults are collected on the way."""

    def __init__(self, record: Record, fields: FieldMap, images: ImageNames, box_format: BoxFormat) -> None:
        self.record = record
        self.faults: list[RowFault] = list(record.faults)
        self.item_id: str | None = None
        self._fields = fields
        self._images = images
        self._box_format = box_format
        schema = load_schema("slot-row")
        self._limits = schema["properties"]
        self._choice = schema["$defs"]["choice"]["properties"]
        self._most_images = schema["$defs"]["view"]["properties"]["images"]["maxItems"]

    def row(self) -> SourceRow | None:
        """Return the row, or ``None`` where something is wrong with it."""
        if self.faults:
            self.item_id = self._quietly_named()
            return None
        for name, meant in self._fields.misspelt(self.record.value) if self.record.is_named else ():
            self._wrong(found_text(name)[1:-1], "not a field of a row", f"{meant}, or another name")
        self.item_id = self._name("id")
        before = len(self.faults)
        images = self._pictures("images")
        if not images and len(self.faults) == before:
            self._wrong(self._fields.first_place("images"), "a row without an image", "at least one image")
        question, choices = self._question(), self._choices()
        before = len(self.faults)
        answer = self._answer("answer")
        if answer is None and len(self.faults) == before:
            self._wrong(self._fields.first_place("answer"), "a row without an answer", "the right answer")
        substitute_images, substitute_answer = self._pictures("substitute_images"), self._answer("substitute_answer")
        if bool(substitute_images) != (substitute_answer is not None):
            missing = "substitute_answer" if substitute_images else "substitute_images"
            self._wrong(self._fields.first_place(missing), "half a substitute", "images and an answer, or neither")
        boxes, masks = self._evidence(max(len(images), 1))
        kind, split = self._answer_type(), self._name("split")
        if self.faults or question is None or answer is None:
            return None
        return SourceRow(
            where=self.record.where,
            number=self.record.number,
            item_id=self.item_id,
            images=images,
            question=question,
            answer=answer,
            choices=choices,
            answer_type=kind,
            boxes=boxes,
            masks=masks,
            substitute_images=substitute_images,
            substitute_answer=substitute_answer,
            split=split,
        )

    # --- taking values --------------------------------------------------------------------------------------------

    def _wrong(self, place: str, found: str, expected: str) -> None:
        self.faults.append(RowFault(field=place, found=found, expected=expected))

    def _value(self, name: str, *, structured: bool = False) -> tuple[str, Any]:
        try:
            return self._fields.value(self.record.value, name, structured=structured)
        except AmbiguousError as error:
            self._wrong(self._fields.first_place(name), f"both {error}", "one of them")
        except NotJsonError as error:
            place, found = error.args
            self._wrong(place, f"a cell that is not JSON: {found}", "JSON, or plain text")
        return self._fields.first_place(name), None

    def _quietly_named(self) -> str | None:
        """Return the id of a row that cannot be read otherwise, if that can."""
        value = self.record.value.get(self._fields.first_place("id"))
        return value if isinstance(value, str) and len(value) <= MAX_NAME_CHARACTERS and value.isprintable() else None

    def _text(self, name: str) -> tuple[str, str | None]:
        """Return (place, text) of a field; numbers and truth values are written as JSON does."""
        place, value = self._value(name)
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, (int, float)):
            value = repr(value)
        if value is None:
            return place, None
        if not isinstance(value, str):
            self._wrong(place, found_text(value), "a text")
            return place, None
        if not _is_utf8(value):
            self._wrong(place, "bytes that are not UTF-8", "UTF-8")
            return place, None
        return place, value

    def _name(self, name: str) -> str | None:
        place, text = self._text(name)
        if text is None:
            return None
        if not text.strip() or not text.isprintable() or len(text) > MAX_NAME_CHARACTERS:
            self._wrong(place, found_text(text), f"1 to {MAX_NAME_CHARACTERS} characters on one line")
        elif hidden := unseen(text):
            self._wrong(place, hidden, VISIBLE)
        else:
            return text
        return None

    # --- fields ---------------------------------------------------------------------------------------------------

    def _question(self) -> str | None:
        before = len(self.faults)
        place, text = self._text("question")
        longest = self._limits["question"]["maxLength"]
        if text is None:
            if len(self.faults) == before:
                self._wrong(place, "a row without a question", "a question")
        elif not text.strip():
            self._wrong(place, "a blank question", "a question")
        elif len(text) > longest:
            self._wrong(place, f"{len(text):,} characters", f"at most {longest:,} characters")
        elif control := _CONTROLS.search(text):
            self._wrong(place, f"the control character U+{ord(control[0]):04X}", "text, line breaks and tabs")
        elif hidden := unseen(text):
            self._wrong(place, hidden, VISIBLE)
        elif token := known_control_token(text):
            self._wrong(place, f"the control token {token}", "text without control tokens of chat templates")
        else:
            return text
        return None

    def _answer(self, name: str) -> str | None:
        place, text = self._text(name)
        if text is None:
            return None
        self.faults += body_faults(text, place=place)
        return text

    def _answer_type(self) -> str:
        place, text = self._text("answer_type")
        if text is None or text == AUTO:
            return AUTO
        if text not in set(AnswerType):
            self._wrong(place, found_text(text), ", ".join((AUTO, *AnswerType)))
        return text

    def _choices(self) -> tuple[Choice, ...]:
        place, value = self._value("choices", structured=True)
        if value is None or value == []:
            return ()
        if not isinstance(value, list):
            self._wrong(place, found_text(value), "a list of texts, or of objects with key and text")
            return ()
        most = min(self._limits["choices"]["maxItems"], len(_LETTERS) if not isinstance(value[0], dict) else len(value))
        if not 1 < len(value) <= most:
            shown = "a single choice" if len(value) == 1 else f"{len(value):,} choices"
            self._wrong(place, shown, f"2 to {most}")
            return ()
        before = len(self.faults)
        choices = [self._one_choice(item, index, f"{place}/{index}") for index, item in enumerate(value)]
        if len(self.faults) > before:
            return ()
        made = tuple(choice for choice in choices if choice)
        for pointer, found, expected, _ in choice_problems(made):
            self._wrong(place + pointer.removeprefix("/choices"), found, expected)
        return made

    def _one_choice(self, item: Any, index: int, place: str) -> Choice | None:  # noqa: ANN401 - what the source holds
        key, text = (item.get("key"), item.get("text")) if isinstance(item, dict) else (_LETTERS[index % 26], item)
        if isinstance(text, (int, float)) and not isinstance(text, bool):
            text = repr(text)
        longest = self._choice["text"]["maxLength"]
        if not isinstance(key, str) or not re.fullmatch(self._choice["key"]["pattern"], key) or key[-1:] == "\n":
            self._wrong(f"{place}/key", found_text(key), "1 to 8 letters and digits")
        elif not isinstance(text, str):
            self._wrong(place, found_text(text), "a text, or an object with key and text")
        elif not _is_utf8(text):
            self._wrong(place, "bytes that are not UTF-8", "UTF-8")
        elif not text or len(text) > longest:
            self._wrong(place, f"{len(text):,} characters", f"1 to {longest:,} characters")
        elif token := known_control_token(text):
            self._wrong(place, f"the control token {token}", "text without control tokens of chat templates")
        else:
            return Choice(key=key, text=text)
        return None

    def _pictures(self, name: str) -> tuple[SourceImage, ...]:
        place, value = self._value(name, structured=True)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if len(values) > self._most_images:
            self._wrong(place, f"{len(values):,} images", f"at most {self._most_images}")
            return ()
        found = [
            self._images.find(item, f"{place}/{index}" if isinstance(value, list) else place)
            for index, item in enumerate(values)
        ]
        self.faults += [one for one in found if isinstance(one, RowFault)]
        return tuple(one for one in found if isinstance(one, SourceImage))

    def _evidence(self, images: int) -> tuple[tuple[SourceBox, ...], tuple[tuple[int, SourceImage], ...]]:
        place, value = self._value("boxes", structured=True)
        boxes, wrong = read_boxes(value, place=place, images=images, form=self._box_format)
        mask_place, value = self._value("masks", structured=True)
        masks, wrong_masks = read_masks(value, place=mask_place, count=images, images=self._images)
        self.faults += [*wrong, *wrong_masks]
        if boxes and masks:
            self._wrong(mask_place, "boxes and masks in one row", "one of the two")
        return boxes, masks


def _is_utf8(text: str) -> bool:
    """Return whether a text can be written as UTF-8: bytes that were not are kept as halves of surrogate pairs."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
