"""CSV (RFC 4180): a line with the fields' names, then one row a line; comma, semicolon or tab between.

Cells are text. A list or an object stands in a cell as JSON, and an empty cell is a field that the row does not have.
"""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any

from explicit_learning.data.build.readers.form import OWN_PLACES, Form
from explicit_learning.data.build.readers.making import Record
from explicit_learning.data.build.readers.watched import GATE
from explicit_learning.data.build.source import RowFault
from explicit_learning.errors import Context, found_text
from explicit_learning.files.jsonl import bounded_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from explicit_learning.data.build.readers.mapping import FieldMap
    from explicit_learning.data.build.readers.watched import WatchedFile

__all__ = ["DELIMITERS", "Csv", "header_of"]

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def header_of(head: bytes) -> tuple[list[str], str] | None:
    """Return (names, delimiter) of the first line of a file, or ``None`` where it is not a line of names.

    The delimiter is the one that gives most names, if these are at least two, all different, and none is blank.

    Args:
        head: The first bytes of the file; they must hold the whole line.
    """
    line = head.removeprefix(BOM_UTF8).split(b"\n", 1)[0].removesuffix(b"\r")
    best: tuple[list[str], str] | None = None
    for delimiter in DELIMITERS:
        try:
            [names] = csv.reader([line.decode()], delimiter=delimiter, strict=True)
        except (csv.Error, UnicodeDecodeError, ValueError):
            continue
        names = [name.strip() for name in names]
        if len(names) > 1 and all(names) and len(set(names)) == len(names) and (not best or len(names) > len(best[0])):
            best = names, delimiter
    return best


class Csv(Form):
    """A CSV file."""

    name = "csv"
    places = OWN_PLACES | {
        "boxes": ("boxes", "bboxes", "bbox", "evidence.boxes"),
        "masks": ("masks", "mask", "evidence.masks"),
        "substitute_images": ("substitute_images", "substitute_image", "substitute.images", "substitute.image"),
        "substitute_answer": ("substitute_answer", "substitute.answer"),
    }
    has_cells = True

    def __init__(self, path: Any, files: tuple[WatchedFile, ...]) -> None:  # noqa: ANN401 - those of `Form`
        super().__init__(path, files)
        [self._file] = self.files
        header = header_of(self._file.head)
        if header is None:
            first = self._file.head.split(b"\n", 1)[0].decode(errors="replace")
            raise Context(gate=GATE, file=f"{self._file.path}:1").refusal(
                found=found_text(first),
                expected="the names of the columns, all different, with commas, semicolons or tabs between",
                fix="write them as the first line",
            )
        self._names, self._delimiter = header

    def records(self, fields: FieldMap) -> Iterator[Record]:  # noqa: ARG002 - all cells are read
        """Yield the rows below the names; blank lines are passed over."""
        number = 0
        with self._file.reading() as stream:
            reader = csv.reader(_texts(stream), delimiter=self._delimiter, strict=True)
            next(reader, None)
            while True:
                line = reader.line_num + 1
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield self._broken(line, number, str(error))
                else:
                    if not cells:
                        continue
                    yield self._record(line, number, cells)
                number += 1

    def words(self, place: int) -> str:
        """Return ``FILE:LINE``, with the line that the row starts in."""
        return f"{self._file.path}:{place}"

    def _record(self, line: int, number: int, cells: list[str]) -> Record:
        if len(cells) != len(self._names):
            found, expected = f"{len(cells):,} cells", f"{len(self._names)}, one a column"
            fault = RowFault(field="row", found=found, expected=expected)
            return Record(where=self.words(line), place=line, number=number, faults=(fault,))
        value = {name: cell for name, cell in zip(self._names, cells, strict=True) if cell != ""}
        return Record(where=self.words(line), place=line, number=number, value=value, is_named=True)

    def _broken(self, line: int, number: int, found: str) -> Record:
        fault = RowFault(field="row", found=found, expected="cells as RFC 4180 has them, quotes inside doubled")
        return Record(where=self.words(line), place=line, number=number, faults=(fault,))


def _texts(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines; a byte that is not UTF-8 becomes half a surrogate pair, which the row is then refused for."""
    for number, line in enumerate(bounded_lines(stream), 1):
        data = line.removeprefix(BOM_UTF8) if number == 1 else line
        yield (data[:-2] + b"\n" if data.endswith(b"\r\n") else data).decode(errors="surrogateescape")
