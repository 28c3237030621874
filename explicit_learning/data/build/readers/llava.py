"""Conversations as LLaVA has them: an image, and turns of a person and of a model.

Each question with the answer behind it becomes a row of its own, because published files join independent questions
about one image into one conversation. The turns before it are not shown to the model: a question that needs them
("and what colour is it?") is one that a person must leave out. There is no evidence, so such rows have FULL views only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from explicit_learning.data.build.readers.json_rows import JsonRows
from explicit_learning.data.build.readers.mapping import AmbiguousError, FieldMap
from explicit_learning.data.build.source import RowFault
from explicit_learning.errors import found_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.data.build.readers.making import Record

__all__ = ["Llava"]

_PLACEHOLDER = "<image>"
_PERSON, _MODEL = frozenset({"human", "user"}), frozenset({"gpt", "assistant"})
_TURNS = "conversations"


class Llava(JsonRows):
    """Rows with ``conversations`` of ``from`` and ``value``, or ``messages`` of ``role`` and ``content``."""

    name = "llava"
    places = {  # noqa: RUF012 - as the base class declares it
        "id": ("id",),
        "images": ("image", "images"),
        _TURNS: ("conversations", "messages"),
        "split": ("split",),
    }

    def row_fields(self, fields: FieldMap) -> FieldMap:  # noqa: ARG002 - `records` has used it
        """Return where the fields stand in a record of one question and its answer."""
        names = ("id", "images", "question", "answer", "split")
        return FieldMap(places={name: (name,) for name in names})

    def records(self, fields: FieldMap) -> Iterator[Record]:
        """Yield a record for each question with its answer; a conversation that cannot be read is one record."""
        number = 0
        for record in super().records(fields):
            for made in _questions(record, fields):
                yield replace(made, number=number)
                number += 1


def _questions(record: Record, fields: FieldMap) -> Iterator[Record]:
    if record.faults:
        yield record
        return
    try:
        found = {name: fields.value(record.value, name) for name in fields.places}
    except AmbiguousError as error:
        yield replace(record, value={}, faults=(RowFault(field="row", found=f"both {error}", expected="one of them"),))
        return
    place, turns = found[_TURNS]
    pictures = found["images"][1]
    count = len(pictures) if isinstance(pictures, list) else int(pictures is not None)
    kept = {name: value for name, (_, value) in found.items() if name != _TURNS and value is not None}
    if not isinstance(turns, list) or not turns or len(turns) % 2:
        shown = f"{len(turns):,} turns" if isinstance(turns, list) else found_text(turns)
        fault = RowFault(field=place, found=shown, expected="turns in pairs: a question and its answer")
        yield replace(record, value=kept, faults=(fault,), is_named=False)
        return
    for index in range(0, len(turns), 2):
        asked = _turn(turns[index], f"{place}/{index}", _PERSON)
        answered = _turn(turns[index + 1], f"{place}/{index + 1}", _MODEL)
        if isinstance(asked, str):
            asked = _without_placeholders(asked, f"{place}/{index}", count if index == 0 else 0)
        faults = tuple(part for part in (asked, answered) if isinstance(part, RowFault))
        value = kept | {"question": asked, "answer": answered}
        where = record.where
        if len(turns) > 2:  # noqa: PLR2004 - one pair
            where = f"{where} (turn {index})"
            if isinstance(kept.get("id"), (str, int)):
                value["id"] = f"{kept['id']}-{index // 2}"
        yield replace(record, where=where, value=kept if faults else value, faults=faults, is_named=False)


def _turn(turn: Any, place: str, speakers: frozenset[str]) -> str | RowFault:  # noqa: ANN401 - a JSON value
    """Return what is said in a turn, or why it is not a turn of one of these speakers."""
    speaker = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
    said = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
    if not isinstance(said, str):
        expected = "an object with from and value, or role and content, both texts"
        return RowFault(field=place, found=found_text(turn), expected=expected)
    if not isinstance(speaker, str) or speaker not in speakers:
        return RowFault(field=place, found=f"a turn of {found_text(speaker)}", expected=" or ".join(sorted(speakers)))
    return said.strip()


def _without_placeholders(text: str, place: str, images: int) -> str | RowFault:
    """Return a question without the marks of its images, which the prompt puts before the text in any case."""
    marks = 0
    while text.startswith(_PLACEHOLDER) or text.endswith(_PLACEHOLDER):
        text = (
            text.removeprefix(_PLACEHOLDER) if text.startswith(_PLACEHOLDER) else text[: -len(_PLACEHOLDER)]
        ).strip()
        marks += 1
    if _PLACEHOLDER in text:
        found = f"{_PLACEHOLDER} inside the question"
        return RowFault(field=place, found=found, expected=f"{_PLACEHOLDER} before or behind the text")
    if marks not in {0, images}:
        found = f"{marks:,} times {_PLACEHOLDER} in a turn with {images:,} images"
        return RowFault(field=place, found=found, expected="one mark for each image, in the first turn")
    return text
