"""Opens a source: finds out its form, its files and its mapping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.build.readers.coco import CocoVqa
from explicit_learning.data.build.readers.csv import Csv
from explicit_learning.data.build.readers.image_names import ImageNames
from explicit_learning.data.build.readers.jsonl import JsonLines
from explicit_learning.data.build.readers.llava import Llava
from explicit_learning.data.build.readers.making import RowMaker
from explicit_learning.data.build.readers.mapping import FieldMap
from explicit_learning.data.build.readers.parquet import Parquet
from explicit_learning.data.build.readers.recognising import files_of, recognise
from explicit_learning.data.build.readers.visual_cot import VisualCot
from explicit_learning.data.build.readers.watched import GATE, WatchedFile
from explicit_learning.errors import Context, ExitCode, found_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from explicit_learning.data.build.readers.form import Form
    from explicit_learning.data.build.source import BoxFormat, RefusedRow, SourceFile, SourceRow

__all__ = ["AUTO_FORM", "FORMS", "OpenedSource", "open_source"]

AUTO_FORM = "auto"
FORMS: Mapping[str, type[Form]] = {form.name: form for form in (JsonLines, Csv, Parquet, CocoVqa, VisualCot, Llava)}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSource:
    """A `Source` of any form; see there.

    Attributes:
        form: Name of its form.
        files: The files that it consists of, without the images.
        mapping: For each field of a row, the source's own field that it is taken from.
        box_format: What four numbers of a box mean.
        images: The folder that the images' paths start at.
    """

    form: str
    files: tuple[SourceFile, ...]
    mapping: Mapping[str, str]
    box_format: BoxFormat
    images: Path
    opened: Form
    fields: FieldMap

    def rows(self, start: int = 0) -> Iterator[SourceRow | RefusedRow]:
        """Read the rows as a stream, in order, from a row number on.

        The rows before it are read too: a later one may repeat an id, or contradict an answer, of theirs.

        Raises:
            Refusal: If the source cannot be read any further, or changed while it was read.
        """
        maker = RowMaker(
            self.opened.row_fields(self.fields),
            images=ImageNames(self.images),
            box_format=self.box_format,
            words=self.opened.words,
        )
        for record in self.opened.records(self.fields):
            row = maker.make(record)
            if record.number >= start:
                yield row


def open_source(
    path: Path,
    *,
    form: str = AUTO_FORM,
    images: Path | None = None,
    mapping: Mapping[str, str] | None = None,
    box_format: BoxFormat | None = None,
) -> OpenedSource:
    """Open a source of rows: its files are hashed, and no row is read yet.

    Args:
        path: A file, or a folder of parquet or COCO files.
        form: Name of one of `FORMS`, or ``auto`` to find out.
        images: Folder that the images' paths start at; by default the source's own folder.
        mapping: Field → place in the source's rows; fields left out keep the form's places.
        box_format: What the four numbers of a box mean; by default what the form says.

    Raises:
        Refusal: If there is nothing of this form, it cannot be read, or the mapping names no field of it.
    """
    if form not in {AUTO_FORM, *FORMS}:
        raise Context(gate=GATE, file="--form").refusal(
            found=found_text(form),
            expected=", ".join((AUTO_FORM, *FORMS)),
            fix="name one of these",
            exit_code=ExitCode.USAGE,
        )
    name = recognise(path, form)
    kind = FORMS[name]
    fields = FieldMap.of_form(kind.places, mapping or {}, form=name, has_cells=kind.has_cells)
    folder = images or (path if path.is_dir() else path.parent)
    ImageNames(folder)
    files = tuple(WatchedFile.opened(file) for file in files_of(path, name))
    opened = kind(path, files)
    return OpenedSource(
        form=name,
        files=tuple(file.source_file for file in files),
        mapping=fields.shown,
        box_format=box_format or kind.box_format,
        images=folder,
        opened=opened,
        fields=fields,
    )
