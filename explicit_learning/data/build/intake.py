"""The first pass: every row of the source read once, its pictures decoded, written and never read from there again."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from explicit_learning.data.build.items import asked
from explicit_learning.data.build.refusals import note_refused, too_many_for_strict
from explicit_learning.data.build.source import RefusedRow, RowFault
from explicit_learning.data.build.stopping import refuse_if_stopped
from explicit_learning.data.build.substitutes import question_key
from explicit_learning.data.build.taking import TakenRow, take_rows
from explicit_learning.errors import found_text
from explicit_learning.files.atomic import fsync_files
from explicit_learning.files.progress import progress
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from explicit_learning.data.build.items import Item, StoredImage
    from explicit_learning.data.build.pool import Workers
    from explicit_learning.data.build.source import Source, SourceRow
    from explicit_learning.data.build.state import State
    from explicit_learning.data.build.taking import Taking

__all__ = ["COMMIT_SECONDS", "note_files", "take_in"]

# Rows that a worker takes at once, and bytes of pictures in them from which on it takes no more.
_CHUNK = 8
_CHUNK_BYTES = 1 << 22
# What a kill can cost at most, beside the tasks under way.
COMMIT_SECONDS = 1.0


def take_in(
    source: Source, state: State, taking: Taking, workers: Workers, *, stop: Callable[[], bool], strict: bool
) -> None:
    """Read the rows that are not in yet.

    Args:
        source: The source.
        state: Takes the items and the refused rows.
        taking: How rows are taken in.
        workers: Does it.
        stop: Whether the build is to stop.
        strict: Whether to stop reading once more rows are refused than are shown.

    Raises:
        Refusal: If the source changed or cannot be read, the build is to stop, or the disk is full.
        OSError: If the disk is full.
    """
    done = state.get("rows_done") or 0
    chunks = _chunks(source.rows(done))
    waiting: list[TakenRow | RefusedRow] = []
    committed = time.monotonic()
    with progress("taking in rows", None, "rows") as advance:
        advance(done)
        for taken in workers(take_rows, ((taking, chunk) for chunk in chunks)):
            waiting += taken
            advance(len(taken))
            if time.monotonic() - committed >= COMMIT_SECONDS:
                _commit(state, taking.root, waiting)
                waiting, committed = [], time.monotonic()
                if strict and too_many_for_strict(state):
                    return
                refuse_if_stopped(stop)
    _commit(state, taking.root, waiting)
    with state.transaction():
        state.set("rows_end", state.get("rows_done"))


def _chunks(rows: Iterator[SourceRow | RefusedRow]) -> Iterator[Sequence[SourceRow | RefusedRow]]:
    """Yield a few rows at a time; fewer where they bring their pictures along, which wait in memory."""
    chunk: list[SourceRow | RefusedRow] = []
    held = 0
    for row in rows:
        chunk.append(row)
        held += _held_bytes(row)
        if len(chunk) == _CHUNK or held >= _CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def _held_bytes(row: SourceRow | RefusedRow) -> int:
    if isinstance(row, RefusedRow):
        return 0
    named = (*row.images, *row.substitute_images, *(mask for _, mask in row.masks))
    return sum(len(image.data) for image in named if image.data is not None)


def _commit(state: State, root: Path, rows: Sequence[TakenRow | RefusedRow]) -> None:
    with state.transaction():
        items = [row.item for row in rows if isinstance(row, TakenRow)]
        note_files(state, root, (image for item in items for image in _images(item)))
        for row in rows:
            if isinstance(row, RefusedRow):
                note_refused(state, row)
            else:
                _note_taken(state, row)
            state.set("rows_done", row.number + 1)


def _note_taken(state: State, row: TakenRow) -> None:
    item = row.item
    if earlier := state.one("SELECT value FROM items WHERE item_id = ?", item.item_id):
        note_refused(state, _repeated(row, json.loads(earlier[0])["where"]))
        return
    state.run(
        "INSERT INTO items (number, item_id, value, ask, lending) VALUES (?, ?, ?, ?, ?)",
        row.number,
        item.item_id,
        json.dumps(to_json(item)),
        asked(item.question, item.choices, item.images),
        _lending(item),
    )
    for pixels, hashed in row.pictures:
        state.run("INSERT OR IGNORE INTO pictures (pixels, hash) VALUES (?, ?)", pixels, hashed)
        state.run("INSERT INTO item_pictures SELECT ?, id FROM pictures WHERE pixels = ?", row.number, pixels)
    state.run_many("INSERT INTO told VALUES (?, ?)", [(row.number, text) for text in row.told])


def _images(item: Item) -> Iterable[StoredImage]:
    return (*item.images, *item.substitute_images, *(mask.image for mask in item.masks))


def _repeated(row: TakenRow, where: str) -> RefusedRow:
    item = row.item
    if item.source_id is None:
        found, field = f"the question, pictures and answer of {where}", "row"
    else:
        found, field = f"{found_text(item.source_id)}, which {where} has already", "id"
    fault = RowFault(field=field, found=found, expected="every row once")
    return RefusedRow(where=item.where, number=row.number, item_id=item.source_id, faults=(fault,))


def _lending(item: Item) -> str | None:
    """Return what rows that may lend each other their evidence have in common; ``None`` if this one cannot."""
    if item.place is None:
        return None
    return json.dumps([question_key(item.question), item.answer_type, to_json(item.choices)])


def note_files(state: State, root: Path, images: Iterable[StoredImage]) -> None:
    """Note files that were written, once they are on the disk: what is noted is not made again.

    Raises:
        OSError: If the disk is full or failing.
    """
    by_path = {image.path: image for image in images}
    known = "SELECT 1 FROM files WHERE path = ?"
    new = [image for path, image in by_path.items() if state.one(known, path) is None]
    fsync_files(root / image.path for image in new)
    state.run_many(
        "INSERT INTO files (path, sha256, bytes, width, height) VALUES (?, ?, ?, ?, ?)",
        [(image.path, image.sha256, image.bytes, image.width, image.height) for image in new],
    )
