"""The dataset's documents, written as streams: rows, manifest, what was refused, and what became of each item.

Items come in the order of their ids, so the files do not depend on the order of the source's rows. Every row is checked
as the gate would check it, and every group with it; what that finds would be a defect of the build.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

from explicit_learning.data.answers import render_answer
from explicit_learning.data.build.items import Item, StoredImage, StoredView
from explicit_learning.data.build.options import EVALUATION, SFT, SLOTS
from explicit_learning.data.build.refusals import refused_lines
from explicit_learning.data.dataset_manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, REFUSED_NAME
from explicit_learning.data.group_rules import Located, check_sft_groups, check_slot_groups
from explicit_learning.data.row_rules import sft_row_faults, slot_row_faults
from explicit_learning.data.rows import Relation, sft_from_json, slot_from_json
from explicit_learning.errors import Context, ExitCode, FaultCollector
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.compiled_schema import compiled_schema
from explicit_learning.files.progress import progress
from explicit_learning.files.schema import validate
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from explicit_learning.data.build.state import State

__all__ = ["MANIFEST_NAME", "write_documents"]

SLOT_ROWS, EVALUATION_ROWS = "slots.jsonl", "evaluation.jsonl"
ANSWERS, CERTIFICATES = "sft_answer.jsonl", "sft_certificate.jsonl"
ITEMS = "items.jsonl"
_DEFECT = Context(
    gate="program",
    fix="report this as a defect, with the source's row (CONTRIBUTING.md says where)",
    exit_code=ExitCode.INTERNAL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An item with its views, as the state has them."""

    item: Item
    part: str
    component: int
    views: tuple[StoredView, ...]
    left_out: tuple[tuple[str, str], ...]


def write_documents(state: State, root: Path, *, dataset: str, generator: dict[str, Any]) -> str:
    """Write the rows, the manifest and the lists beside them, and remove pictures that no row shows.

    Args:
        state: What is written.
        root: The dataset's folder, with the pictures.
        dataset: The dataset's name.
        generator: The manifest's block on what made it.

    Returns:
        The manifest's identity, as `load_dataset_manifest` computes it.

    Raises:
        OSError: If it cannot be written.
        Refusal: If the manifest would be larger than it may be; or with exit code 70 if a row breaks a rule.
    """
    with state.transaction():
        state.run("UPDATE files SET used = 0")
        files = [
            *_write_rows(state, root, SLOTS, {SLOT_ROWS: _slot_rows}),
            *_write_rows(
                state, root, SFT, {"sft_answer.jsonl": _answer_rows, "sft_certificate.jsonl": _certificate_rows}
            ),
            *_write_rows(state, root, EVALUATION, {EVALUATION_ROWS: _slot_rows}),
        ]
        _write_lines(root / REFUSED_NAME, refused_lines(state))
        _write_lines(root / ITEMS, _item_lines(state))
        identity = _write_manifest(state, root / MANIFEST_NAME, files, dataset=dataset, generator=generator)
    _remove_unused(state, root)
    return identity


# --- rows ---------------------------------------------------------------------------------------------------------


def _entries(state: State, part: str | None = None) -> Iterator[_Entry]:
    """Yield items in the order of their ids."""
    query = (
        "SELECT number, item_id, items.value, part, component, views.value FROM items JOIN views USING (number)"
        " WHERE part = coalesce(?, part) ORDER BY item_id, position"
    )
    for (number, _, value, found, component), rows in groupby(state.rows(query, part), key=lambda row: row[:5]):
        left = state.rows("SELECT relation, reason FROM left_out WHERE number = ? ORDER BY relation, reason", number)
        yield _Entry(
            item=Item.from_json(json.loads(value)),
            part=found,
            component=component,
            views=tuple(StoredView.from_json(json.loads(row[5])) for row in rows),
            left_out=tuple((relation, reason) for relation, reason in left),
        )


def _write_rows(
    state: State, root: Path, part: str, kinds: dict[str, Callable[[_Entry], list[dict[str, Any]]]]
) -> list[dict[str, Any]]:
    """Write a part's files, and return their entries in the manifest; one without rows is left out."""
    kind = "sft" if part == SFT else part
    entries = []
    for name, rows_of in kinds.items():
        total = state.count("SELECT COUNT(*) FROM items WHERE part = ?", part)
        with progress(f"writing {name}", total, "items") as advance, _Counted(root / name) as file:
            for entry in _entries(state, part):
                rows = rows_of(entry)
                _check(rows, part)
                for row in rows:
                    file.write(row)
                _note_used(state, rows)
                advance(1)
        if file.rows:
            entries.append({"kind": kind, "path": name, **file.entry()})
        else:
            (root / name).unlink()
    return entries


class _Counted:
    """A file of canonical lines, with its hash, bytes and rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self.bytes = self.rows = 0

    def __enter__(self) -> Self:
        self._stream = self._path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, row: dict[str, Any]) -> None:
        """Write a row."""
        line = canonical_bytes(row) + b"\n"
        self._stream.write(line)
        self._digest.update(line)
        self.bytes += len(line)
        self.rows += 1

    def entry(self) -> dict[str, Any]:
        """Return what the manifest says of the file."""
        return {"sha256": self._digest.hexdigest(), "bytes": self.bytes, "rows": self.rows}


def _slot_rows(entry: _Entry) -> list[dict[str, Any]]:
    """Return a group's rows, one a view."""
    item, views = entry.item, entry.views
    full = _view(views[0], item)
    shared: dict[str, Any] = _shared(entry) | {"full_view": full, "full_answer": item.answer}
    for view in views:
        if view.relation is Relation.SUBSTITUTE:
            shared["substitute_answer"] = view.target
    return [
        shared
        | {
            "slot_id": f"{item.item_id}.{view.view_id}",
            "relation": view.relation.value,
            "selected_view": full if view is views[0] else _view(view, item),
        }
        for view in views
    ]


def _answer_rows(entry: _Entry) -> list[dict[str, Any]]:
    return [_sft_row(entry, "sft_answer", entry.views[0])]


def _certificate_rows(entry: _Entry) -> list[dict[str, Any]]:
    return [_sft_row(entry, "sft_certificate", entry.views[-1])]


def _sft_row(entry: _Entry, record_kind: str, view: StoredView) -> dict[str, Any]:
    return _shared(entry) | {
        "record_id": f"{entry.item.item_id}.{view.view_id}.{record_kind}",
        "record_kind": record_kind,
        "view_id": view.view_id,
        "relation": view.relation.value,
        "state": view.state,
        "images": _images(view.images),
        "target": view.target,
        "assistant_response": render_answer(view.target),
    }


def _shared(entry: _Entry) -> dict[str, Any]:
    item = entry.item
    return {
        "schema_version": 2,
        "group_id": item.item_id,
        "base_id": item.item_id,
        "split": "evaluation" if entry.part == EVALUATION else "train",
        "question": item.question,
        "choices": to_json(item.choices),
        "answer_type": item.answer_type.value,
    }


def _view(view: StoredView, item: Item) -> dict[str, Any]:
    form: dict[str, Any] = {
        "view_id": view.view_id,
        "role": view.relation.value,
        "state": view.state,
        "images": _images(view.images),
    }
    if view.relation is Relation.FULL and item.boxes:
        form["evidence"] = {"boxes": to_json(item.boxes)}
    elif view.relation is Relation.FULL and item.masks:
        form["evidence"] = {
            "masks": [
                {"image_index": mask.image_index, "path": mask.image.path, "sha256": mask.image.sha256}
                for mask in item.masks
            ]
        }
    return form


def _images(images: Iterable[StoredImage]) -> list[dict[str, Any]]:
    return [
        {
            "image_index": index,
            "path": image.path,
            "sha256": image.sha256,
            "width": image.width,
            "height": image.height,
        }
        for index, image in enumerate(images)
    ]


def _check(rows: list[dict[str, Any]], part: str) -> None:
    """Check a group's rows as the gate does.

    Raises:
        Refusal: With exit code 70, if a row breaks a rule.
    """
    faults = FaultCollector(_DEFECT)
    schema = {SLOTS: "slot-row", EVALUATION: "evaluation-row", SFT: "sft-row"}[part]
    for row in rows:
        if not compiled_schema(schema)(row):
            faults.extend(validate(row, schema, gate=_DEFECT.gate, file=schema))
    if not faults.faults() and part == SFT:
        certificates = [Located(where=row["record_id"], row=sft_from_json(row)) for row in rows]
        for one in certificates:
            faults.extend(sft_row_faults(one.row, _DEFECT.at(one.where)))
        check_sft_groups(certificates, faults)
    elif not faults.faults():
        slots = [Located(where=row["slot_id"], row=slot_from_json(row)) for row in rows]
        for slot in slots:
            faults.extend(slot_row_faults(slot.row, _DEFECT.at(slot.where)))
        check_slot_groups(slots, faults)
    if found := faults.faults():
        raise _DEFECT.refusal(
            file=found[0].file, pointer=found[0].pointer, found=found[0].found, expected=found[0].expected
        )


def _note_used(state: State, rows: list[dict[str, Any]]) -> None:
    """Note the files that rows name."""
    paths = {image["path"] for row in rows for image in row.get("images", ())}
    for row in rows:
        for view in (row[name] for name in ("full_view", "selected_view") if name in row):
            paths.update(image["path"] for image in view["images"])
            paths.update(mask["path"] for mask in view.get("evidence", {}).get("masks", ()))
    state.run_many("UPDATE files SET used = 1 WHERE path = ?", [(path,) for path in sorted(paths)])


# --- what lies beside the rows ------------------------------------------------------------------------------------


def _write_lines(path: Path, lines: Iterable[bytes]) -> None:
    with path.open("wb") as stream:
        stream.writelines(lines)


def _item_lines(state: State) -> Iterator[bytes]:
    """Yield the lines of ``items.jsonl``."""
    for entry in _entries(state):
        line = {
            "group_id": entry.item.item_id,
            "id": entry.item.source_id,
            "where": entry.item.where,
            "part": entry.part,
            "component": entry.component,
            "views": [view.view_id for view in entry.views],
            "left_out": [{"relation": relation, "reason": reason} for relation, reason in entry.left_out],
        }
        yield canonical_bytes(line) + b"\n"


def _write_manifest(
    state: State, path: Path, files: list[dict[str, Any]], *, dataset: str, generator: dict[str, Any]
) -> str:
    """Write the manifest, one image a line, and return its identity: the SHA-256 of its canonical form."""
    rows = {entry["path"]: entry["rows"] for entry in files}
    images = state.count("SELECT COUNT(*) FROM files WHERE used")
    head = {
        "schema_version": 1,
        "dataset": dataset,
        "asset_root": ".",
        "files": files,
        "counts": {
            "slots": rows.get(SLOT_ROWS, 0),
            "groups": state.count("SELECT COUNT(*) FROM items WHERE part = ?", SLOTS),
            "sft_rows": rows.get(ANSWERS, 0) + rows.get(CERTIFICATES, 0),
            "evaluation_rows": rows.get(EVALUATION_ROWS, 0),
            "images": images,
        },
        "generator": generator,
    }
    with path.open("wb") as stream:
        identity = _stream_manifest(stream, head, _assets(state))
        size = stream.tell()
    if size > MAX_MANIFEST_BYTES:
        raise Context(gate="output", file=str(path)).refusal(
            found=f"a manifest of {size:,} bytes for {images:,} pictures",
            expected=f"at most {MAX_MANIFEST_BYTES:,} bytes",
            fix="build two datasets of half the rows",
        )
    return identity


def _assets(state: State) -> Iterator[dict[str, Any]]:
    query = "SELECT path, sha256, bytes, width, height FROM files WHERE used ORDER BY path"
    for row in state.rows(query):
        yield dict(zip(("path", "sha256", "bytes", "width", "height"), row, strict=True))


def _stream_manifest(stream: BinaryIO, head: dict[str, Any], assets: Iterable[dict[str, Any]]) -> str:
    """Write a manifest with its images in a stream, and return the SHA-256 of its canonical form.

    In that form keys are sorted, so the images stand between what sorts before and behind them.
    """
    digest = hashlib.sha256()
    before = canonical_bytes({name: value for name, value in head.items() if name < "images"})
    behind = canonical_bytes({name: value for name, value in head.items() if name > "images"})
    written = json.dumps(head, indent=2, ensure_ascii=False, allow_nan=False).encode()
    digest.update(before[:-1] + b',"images":[')
    stream.write(written[: -len(b"\n}")] + b',\n  "images": [')
    separator, line_end = b"", b"\n    "
    for asset in assets:
        form = canonical_bytes(asset)
        digest.update(separator + form)
        stream.write(separator + line_end + form)
        separator = b","
    digest.update(b"]," + behind[1:])
    stream.write(b"\n  ]\n}\n")
    return digest.hexdigest()


def _remove_unused(state: State, root: Path) -> None:
    """Remove pictures and masks that no row shows: those of refused rows and of views that were taken out."""
    unused = [path for (path,) in state.rows("SELECT path FROM files WHERE NOT used")]
    with state.transaction():  # what is not noted is removed at a resume, too
        state.run("DELETE FROM files WHERE NOT used")
    for path in unused:
        (root / path).unlink(missing_ok=True)
