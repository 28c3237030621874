"""What all forms have in common: files that are watched, places that fields come from, and records in a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from explicit_learning.data.build.source import BoxFormat, RowFault
from explicit_learning.errors import found_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from explicit_learning.data.build.readers.making import Record
    from explicit_learning.data.build.readers.mapping import FieldMap
    from explicit_learning.data.build.readers.watched import WatchedFile
    from explicit_learning.errors import Fault

__all__ = ["OWN_PLACES", "Form", "row_faults", "rowed"]

# The form that this program documents; others differ where their authors chose other names.
OWN_PLACES: dict[str, tuple[str, ...]] = {
    "id": ("id",),
    "images": ("images", "image"),
    "question": ("question",),
    "answer": ("answer",),
    "choices": ("choices",),
    "answer_type": ("answer_type",),
    "boxes": ("evidence.boxes", "boxes", "bboxes", "bbox"),
    "masks": ("evidence.masks", "masks", "mask"),
    "substitute_images": ("substitute.images", "substitute.image"),
    "substitute_answer": ("substitute.answer",),
    "split": ("split",),
}


class Form(ABC):
    """An opened source of one form.

    Attributes:
        name: The form's name.
        places: Where each field of a row is looked for, unless a person maps it.
        box_format: What four numbers mean, unless a person says otherwise.
        has_cells: Whether lists and objects may stand in texts, as JSON.
        files: The source's files.
    """

    name: ClassVar[str]
    places: ClassVar[Mapping[str, tuple[str, ...]]] = OWN_PLACES
    box_format: ClassVar[BoxFormat] = BoxFormat.XYXY
    has_cells: ClassVar[bool] = False

    def __init__(self, path: Path, files: tuple[WatchedFile, ...]) -> None:
        """Take the source's path and its files, at least one.

        Raises:
            Refusal: If the files are not of this form, as far as can be told at once.
        """
        self.path = path
        self.files = files

    @abstractmethod
    def records(self, fields: FieldMap) -> Iterator[Record]:
        """Yield the source's rows in order, each as the form holds it.

        Args:
            fields: Where each field comes from.

        Raises:
            Refusal: If the source cannot be read any further, or changed while it was read.
        """

    @abstractmethod
    def words(self, place: int) -> str:
        """Return the place of a record as people read it."""

    def row_fields(self, fields: FieldMap) -> FieldMap:
        """Return where the fields of a record stand, for forms whose records are made of the source's rows."""
        return fields


def row_faults(faults: Iterable[Fault]) -> tuple[RowFault, ...]:
    """Return what is wrong with a row's text as faults of that row."""
    return tuple(RowFault(field=fault.pointer or "row", found=fault.found, expected=fault.expected) for fault in faults)


def rowed(value: Any) -> dict[str, Any] | tuple[RowFault, ...]:  # noqa: ANN401 - a JSON value
    """Return a value that is a row, or why it is not one."""
    if isinstance(value, dict):
        return value
    return (RowFault(field="row", found=found_text(value), expected="a JSON object"),)
