"""Parquet: one file, or the folder of a Hugging Face dataset, whose images stand in the rows as bytes.

Row groups are read one after another, and of a row only the columns that the mapping names.
"""

from __future__ import annotations

import bisect
import itertools
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from explicit_learning.data.build.readers.csv import Csv
from explicit_learning.data.build.readers.form import Form
from explicit_learning.data.build.readers.making import Record
from explicit_learning.data.build.readers.watched import GATE
from explicit_learning.errors import FOUND_LIMIT, Context, Refusal
from explicit_learning.files.os_errors import read_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.data.build.readers.mapping import FieldMap
    from explicit_learning.data.build.readers.watched import WatchedFile

__all__ = ["MAX_GROUP_BYTES", "Parquet"]

# A row group is unpacked as one piece. Hugging Face writes groups of 100 to 1,000 rows.
MAX_GROUP_BYTES = 1 << 29
_BATCH = 32  # rows that are Python objects at once
_SPLIT = re.compile(r"(train|validation|val|dev|test)[-._]")


class Parquet(Form):
    """Parquet files in the order of their names."""

    name = "parquet"
    places = Csv.places
    has_cells = True

    def __init__(self, path: Path, files: tuple[WatchedFile, ...]) -> None:
        super().__init__(path, files)
        self._sizes = [self._rows_of(file) for file in files]
        self._ends = list(itertools.accumulate(self._sizes))

    def records(self, fields: FieldMap) -> Iterator[Record]:
        """Yield the rows; one without a split has that of its file's name, as in ``test-00000-of-00002.parquet``."""
        number = 0
        for file in self.files:
            split = _SPLIT.match(file.path.name) if len(self.files) > 1 else None
            for value in self._values(file, fields):
                named = {"split": split[1]} if split else {}
                yield Record(where=self.words(number), place=number, number=number, value=named | value)
                number += 1

    def words(self, place: int) -> str:
        """Return ``FILE#ROW``, with the row counted from 0 in its file."""
        index = bisect.bisect_right(self._ends, place)
        return f"{self.files[index].path}#{place - self._ends[index] + self._sizes[index]}"

    def _rows_of(self, file: WatchedFile) -> int:
        with _parquet_errors(file.path), _opened(file.path) as opened:
            for index in range(opened.metadata.num_row_groups):
                size = opened.metadata.row_group(index).total_byte_size
                if size > MAX_GROUP_BYTES:
                    raise Context(gate=GATE, file=str(file.path)).refusal(
                        found=f"row group {index} of {size:,} bytes",
                        expected=f"at most {MAX_GROUP_BYTES:,}, so that memory stays bounded",
                        fix="write the file with smaller row groups, such as to_parquet(..., batch_size=100)",
                    )
            return int(opened.metadata.num_rows)

    def _values(self, file: WatchedFile, fields: FieldMap) -> Iterator[dict[str, Any]]:
        file.require_state()
        wanted = fields.columns()
        with _parquet_errors(file.path), _opened(file.path) as opened:
            names = [name for name in opened.schema_arrow.names if name in wanted]
            for batch in opened.iter_batches(batch_size=_BATCH, columns=names, use_threads=False):
                yield from batch.to_pylist()
                file.require_state()
        file.require_bytes()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with path.open("rb") as stream, parquet.ParquetFile(stream, pre_buffer=False) as opened:
        yield opened


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """Turn what the library raises about a file into a refusal."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise Refusal(read_fault(error, path, gate=GATE)) from None
        raise Context(gate=GATE, file=str(path)).refusal(
            found=f"cannot be read as parquet: {' '.join(str(error).split())[:FOUND_LIMIT]}",
            expected="a whole parquet file",
            fix="write the file again",
        ) from None
