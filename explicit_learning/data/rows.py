"""Rows as typed values: slots, certificates, and the views they name.

A row is read once, checked once, and from then on is a frozen, typed value. The constructors here trust their input:
they are called on JSON that has passed its schema (`explicit_learning.data.reading`), so that a field's form is defined
in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from explicit_learning.data.answers import ABSTENTION, AnswerType, Choice

__all__ = [
    "EvidenceBox",
    "EvidenceMask",
    "ImageRef",
    "Relation",
    "SftRow",
    "SlotRow",
    "View",
    "sft_from_json",
    "slot_from_json",
    "slot_to_json",
]

Json = dict[str, Any]


class Relation(StrEnum):
    """What a view is to its base item."""

    FULL = "FULL"
    CONTROL = "CONTROL"
    MISSING = "MISSING"
    SUBSTITUTE = "SUBSTITUTE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """An image that a view shows: its place in the prompt, its file, and its size after EXIF rotation in pixels."""

    image_index: int
    path: str
    sha256: str
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceBox:
    """A half-open box of pixels after EXIF rotation: x0 ≤ x < x1, y0 ≤ y < y1."""

    image_index: int
    x0: int
    y0: int
    x1: int
    y1: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceMask:
    """A mask file for one image; pixels that are not 0 are evidence."""

    image_index: int
    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A rendering of a base item's images in a state.

    Attributes:
        view_id: Name, unique inside the group.
        role: What the view is to its base item.
        state: How it was rendered, such as the operator that removed the evidence.
        images: The images in the order of the prompt.
        boxes: Evidence as boxes; empty where masks are given, or neither.
        masks: Evidence as mask files.
    """

    view_id: str
    role: Relation
    state: str
    images: tuple[ImageRef, ...]
    boxes: tuple[EvidenceBox, ...] = ()
    masks: tuple[EvidenceMask, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    """A comparison slot, or a held-out question in the same form; see ``schemas/slot-row.schema.json``."""

    slot_id: str
    group_id: str
    base_id: str
    split: str
    question: str
    choices: tuple[Choice, ...]
    answer_type: AnswerType
    relation: Relation
    full_view: View
    selected_view: View
    full_answer: str
    substitute_answer: str | None = None

    @property
    def target(self) -> str:
        """The answer body that is right for the selected view."""
        return self.answer_under(self.relation)

    def answer_under(self, relation: Relation) -> str:
        """Return the answer body that is right for a view with this relation.

        Raises:
            ValueError: For SUBSTITUTE where the row has no substitute answer.
        """
        if relation is Relation.MISSING:
            return ABSTENTION
        if relation is not Relation.SUBSTITUTE:
            return self.full_answer
        if self.substitute_answer is None:
            raise ValueError(f"slot {self.slot_id} has no substitute answer")
        return self.substitute_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRow:
    """A certificate: what the model should answer to a view; see ``schemas/sft-row.schema.json``."""

    record_id: str
    record_kind: str
    group_id: str
    base_id: str
    view_id: str
    split: str
    relation: Relation
    state: str
    question: str
    choices: tuple[Choice, ...]
    answer_type: AnswerType
    images: tuple[ImageRef, ...]
    target: str
    assistant_response: str


def slot_from_json(row: Json) -> SlotRow:
    """Return a slot row that has passed its schema as a typed value."""
    return SlotRow(
        slot_id=row["slot_id"],
        group_id=row["group_id"],
        base_id=row["base_id"],
        split=row["split"],
        question=row["question"],
        choices=_choices(row["choices"]),
        answer_type=AnswerType(row["answer_type"]),
        relation=Relation(row["relation"]),
        full_view=_view(row["full_view"]),
        selected_view=_view(row["selected_view"]),
        full_answer=row["full_answer"],
        substitute_answer=row.get("substitute_answer"),
    )


def sft_from_json(row: Json) -> SftRow:
    """Return an SFT row that has passed its schema as a typed value."""
    return SftRow(
        record_id=row["record_id"],
        record_kind=row["record_kind"],
        group_id=row["group_id"],
        base_id=row["base_id"],
        view_id=row["view_id"],
        split=row["split"],
        relation=Relation(row["relation"]),
        state=row["state"],
        question=row["question"],
        choices=_choices(row["choices"]),
        answer_type=AnswerType(row["answer_type"]),
        images=_images(row["images"]),
        target=row["target"],
        assistant_response=row["assistant_response"],
    )


def slot_to_json(row: SlotRow) -> Json:
    """Return the JSON form of a slot row: exactly what `slot_from_json` was given."""
    value: Json = {
        "schema_version": 2,
        "slot_id": row.slot_id,
        "group_id": row.group_id,
        "base_id": row.base_id,
        "split": row.split,
        "question": row.question,
        "choices": [_fields(choice) for choice in row.choices],
        "answer_type": row.answer_type.value,
        "relation": row.relation.value,
        "full_view": _view_to_json(row.full_view),
        "selected_view": _view_to_json(row.selected_view),
        "full_answer": row.full_answer,
    }
    return value if row.substitute_answer is None else value | {"substitute_answer": row.substitute_answer}


def _choices(values: list[Json]) -> tuple[Choice, ...]:
    return tuple(Choice(**value) for value in values)


def _images(values: list[Json]) -> tuple[ImageRef, ...]:
    return tuple(ImageRef(**value) for value in values)


def _view(value: Json) -> View:
    evidence = value.get("evidence", {})
    return View(
        view_id=value["view_id"],
        role=Relation(value["role"]),
        state=value["state"],
        images=_images(value["images"]),
        boxes=tuple(EvidenceBox(**box) for box in evidence.get("boxes", ())),
        masks=tuple(EvidenceMask(**mask) for mask in evidence.get("masks", ())),
    )


def _view_to_json(view: View) -> Json:
    value: Json = {
        "view_id": view.view_id,
        "role": view.role.value,
        "state": view.state,
        "images": [_fields(image) for image in view.images],
    }
    if view.boxes:
        value["evidence"] = {"boxes": [_fields(box) for box in view.boxes]}
    if view.masks:
        value["evidence"] = {"masks": [_fields(mask) for mask in view.masks]}
    return value


def _fields(value: Any) -> Json:  # noqa: ANN401 - one of the dataclasses above
    return {name: getattr(value, name) for name in value.__slots__}
