"""What the build knows of a row once its pictures are taken in: an item, and later its views."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.answers import AnswerType, Choice
from explicit_learning.data.rows import EvidenceBox, Relation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.data.build.regions import Box

__all__ = ["Item", "Place", "StoredImage", "StoredMask", "StoredView", "asked", "shown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """A picture or mask in the dataset's folder.

    Attributes:
        path: Its path below the asset root.
        sha256: Hash of the file's bytes.
        bytes: Size of the file, in bytes.
        width: In pixels.
        height: In pixels.
        pixels: SHA-256 of its size and RGB pixels (`pixels_sha256`): equal for pictures that show the same.
    """

    path: str
    sha256: str
    bytes: int
    width: int
    height: int
    pixels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMask:
    """A mask of evidence in one of an item's images."""

    image_index: int
    image: StoredImage


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The one box around an item's evidence, half-open, in pixels; an item with several has none."""

    image_index: int
    top: int
    left: int
    bottom: int
    right: int

    @classmethod
    def of(cls, image_index: int, box: Box) -> Place:
        """Return the place of a box in an image."""
        return cls(image_index=image_index, top=box.top, left=box.left, bottom=box.bottom, right=box.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A row whose pictures and evidence were found right.

    Attributes:
        item_id: Its name in the dataset: group id and base id.
        source_id: The source's own name of it; ``None`` where it has none.
        where: Its place in the source.
        question: The question.
        answer: The full answer's body.
        choices: The choices, empty for an open question.
        answer_type: How answers are compared.
        images: The pictures, in the order of the prompt.
        boxes: Evidence as boxes.
        masks: Evidence as masks; not beside boxes.
        place: The one box around the evidence.
        substitute_images: The pictures of a substitute; empty without one.
        substitute_answer: The right answer to these.
        asked_split: What the source says of its split.
    """

    item_id: str
    source_id: str | None
    where: str
    question: str
    answer: str
    choices: tuple[Choice, ...]
    answer_type: AnswerType
    images: tuple[StoredImage, ...]
    boxes: tuple[EvidenceBox, ...]
    masks: tuple[StoredMask, ...]
    place: Place | None
    substitute_images: tuple[StoredImage, ...]
    substitute_answer: str | None
    asked_split: str | None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Item:
        """Return an item that `files.typed_json.to_json` wrote."""
        place = value["place"]
        named = {
            "choices": tuple(Choice(**choice) for choice in value["choices"]),
            "answer_type": AnswerType(value["answer_type"]),
            "images": _images(value["images"]),
            "boxes": tuple(EvidenceBox(**box) for box in value["boxes"]),
            "masks": tuple(
                StoredMask(image_index=mask["image_index"], image=StoredImage(**mask["image"]))
                for mask in value["masks"]
            ),
            "place": None if place is None else Place(**place),
            "substitute_images": _images(value["substitute_images"]),
        }
        return cls(**(value | named))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredView:
    """A view whose pictures are in the dataset's folder.

    Attributes:
        view_id: Its name, unique in its item.
        relation: What it is to the item.
        state: How it was made.
        images: The pictures, in the order of the prompt.
        target: The right answer's body.
    """

    view_id: str
    relation: Relation
    state: str
    images: tuple[StoredImage, ...]
    target: str

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StoredView:
        """Return a view that `files.typed_json.to_json` wrote."""
        return cls(**(value | {"relation": Relation(value["relation"]), "images": _images(value["images"])}))


def _images(values: list[dict[str, Any]]) -> tuple[StoredImage, ...]:
    return tuple(StoredImage(**value) for value in values)


def asked(question: str, choices: Sequence[Choice], images: Sequence[StoredImage]) -> str:
    """Return a hash of what a model is shown: the question, the choices, and what the pictures show."""
    named = [[choice.key, choice.text] for choice in choices]
    return _digest([question, named, [image.pixels for image in images]])


def shown(images: Sequence[StoredImage]) -> str:
    """Return a hash of what pictures show together."""
    return _digest([image.pixels for image in images])


def _digest(value: list[Any]) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
