"""A person's own rows, whatever form they come in: what a reader hands to the build.

A reader knows a form (JSON Lines, CSV, parquet, COCO, ...) and nothing of operators, splits or files to write. It gives
one value for each row of its source, in the source's order: the row, or why it was refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from explicit_learning.data.answers import Choice

__all__ = ["BoxFormat", "RefusedRow", "RowFault", "Source", "SourceBox", "SourceFile", "SourceImage", "SourceRow"]


class BoxFormat(StrEnum):
    """What the four numbers of a box mean. Pixels are counted after EXIF rotation.

    ``xyxy``: left, top, right, bottom in pixels, right and bottom excluded. ``xywh``: left, top, width, height in
    pixels, as in COCO. ``normalised``: like ``xyxy``, as shares of the image's width and height. ``thousandths``: like
    ``xyxy``, from 0 to 1000.
    """

    XYXY = "xyxy"
    XYWH = "xywh"
    NORMALISED = "normalised"
    THOUSANDTHS = "thousandths"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that was read as the source: path, SHA-256 and bytes."""

    path: Path
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceImage:
    """An image or mask as a row names it.

    Attributes:
        name: What the source calls it, for messages.
        path: Its file, checked to be inside the images' folder; ``None`` where the source holds the bytes.
        data: Its bytes; ``None`` where it is a file.
    """

    name: str
    path: Path | None = None
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBox:
    """A box of evidence in one of the row's images, in the source's own convention."""

    image_index: int
    values: tuple[float, float, float, float]
    form: BoxFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One question about one or more images; every text was checked, no image was opened.

    Attributes:
        where: Its place, as ``FILE:LINE``, or ``FILE#ROW`` where the form has no lines.
        number: Its place in the source, from 0.
        item_id: The source's own name of it; ``None`` where it has none.
        images: The images in the order of the prompt, at least one.
        question: The question.
        answer: The full answer's body.
        choices: The choices, empty for an open question.
        answer_type: A type of `AnswerType`, or ``auto``.
        boxes: Evidence as boxes.
        masks: Evidence as (image index, mask).
        substitute_images: The images of a substitute; empty without one.
        substitute_answer: The right answer to these.
        split: What the source says; ``None`` where it says nothing.
    """

    where: str
    number: int
    item_id: str | None
    images: tuple[SourceImage, ...]
    question: str
    answer: str
    choices: tuple[Choice, ...] = ()
    answer_type: str = "auto"
    boxes: tuple[SourceBox, ...] = ()
    masks: tuple[tuple[int, SourceImage], ...] = ()
    substitute_images: tuple[SourceImage, ...] = ()
    substitute_answer: str | None = None
    split: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """Why a row was refused: its field, what was found, what was expected."""

    field: str
    found: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that cannot be used, with every reason; the build goes on without it."""

    where: str
    number: int
    item_id: str | None
    faults: tuple[RowFault, ...]


class Source(Protocol):
    """An opened source."""

    @property
    def form(self) -> str:
        """Name of its form, such as ``jsonl``."""

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files that it consists of, without the images."""

    @property
    def mapping(self) -> Mapping[str, str]:
        """For each field of a row, the source's own field that it is taken from."""

    @property
    def box_format(self) -> BoxFormat:
        """What the four numbers of a box mean."""

    @property
    def images(self) -> Path:
        """The folder that the images' paths start at."""

    def rows(self, start: int = 0) -> Iterator[SourceRow | RefusedRow]:
        """Read the rows as a stream, in order, from a row number on.

        Raises:
            Refusal: If the source cannot be read any further, or changed while it was read.
        """
