"""Rows as JSON objects: one a line, or the elements of one array."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any

from explicit_learning.data.build.readers.form import Form, row_faults, rowed
from explicit_learning.data.build.readers.json_stream import json_members
from explicit_learning.data.build.readers.making import Record
from explicit_learning.data.build.readers.watched import GATE
from explicit_learning.data.build.source import RowFault
from explicit_learning.errors import Refusal
from explicit_learning.files.jsonl import MAX_LINE_BYTES, bounded_lines
from explicit_learning.files.strict_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.data.build.readers.mapping import FieldMap
    from explicit_learning.data.build.readers.watched import WatchedFile

__all__ = ["JsonRows", "is_array"]


def is_array(file: WatchedFile) -> bool:
    """Return whether a file starts as a JSON array."""
    return file.head.removeprefix(BOM_UTF8).lstrip()[:1] == b"["


class JsonRows(Form):
    """A file of JSON objects in lines or in an array; forms differ in what the objects hold."""

    def __init__(self, path: Any, files: Any) -> None:  # noqa: ANN401 - those of `Form`
        super().__init__(path, files)
        [self._file] = self.files
        self._is_array = is_array(self._file)

    def records(self, fields: FieldMap) -> Iterator[Record]:  # noqa: ARG002 - all fields are read
        """Yield the objects, and what is wrong with those that are none. White lines are passed over."""
        return self._elements() if self._is_array else self._lines()

    def words(self, place: int) -> str:
        """Return ``FILE:LINE``, or ``FILE#ELEMENT``."""
        return f"{self._file.path}{'#' if self._is_array else ':'}{place}"

    def _record(self, place: int, number: int, value: Any, faults: tuple[RowFault, ...] = ()) -> Record:  # noqa: ANN401 - JSON
        row = faults or rowed(value)
        where = self.words(place)
        if isinstance(row, tuple):
            return Record(where=where, place=place, number=number, faults=row)
        return Record(where=where, place=place, number=number, value=row, is_named=True)

    def _elements(self) -> Iterator[Record]:
        with self._file.reading() as stream:
            for number, member in enumerate(json_members(stream, file=str(self._file.path))):
                yield self._record(number, number, member.value, row_faults(member.faults))

    def _lines(self) -> Iterator[Record]:
        number = 0
        with self._file.reading() as stream:
            for line_number, line in enumerate(bounded_lines(stream), 1):
                text = line.removeprefix(BOM_UTF8) if line_number == 1 else line
                if not text.strip():
                    continue
                value, faults = _parsed(text)
                yield self._record(line_number, number, value, faults)
                number += 1


def _parsed(line: bytes) -> tuple[Any, tuple[RowFault, ...]]:
    if len(line) >= MAX_LINE_BYTES:
        found = f"a line of {MAX_LINE_BYTES:,} bytes or more"
        return None, (RowFault(field="row", found=found, expected="shorter lines, each one row"),)
    try:
        return parse_json(line, gate=GATE, file=""), ()
    except Refusal as refusal:
        return None, row_faults(refusal.faults)
