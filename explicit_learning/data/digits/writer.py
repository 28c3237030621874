"""Writes a dataset of digits: slots, SFT rows, evaluation rows, images and the manifest of them all.

The same seed and size give the same bytes on any machine: random numbers are integers from a keyed PCG64, painting is
integer arithmetic, rows are canonical JSON, and images are stored in PNG without compression, because compressors are
free to pick other bytes on another processor.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from explicit_learning.data.dataset_manifest import MANIFEST_NAME
from explicit_learning.data.digits.canvas import CANVAS, Hardness
from explicit_learning.data.digits.items import Item, View, make_item, make_views
from explicit_learning.data.digits.pools import Pool, load_pool
from explicit_learning.files.atomic import new_folder, write_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.jsonl import write_rows

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GENERATOR_VERSION", "SIZES", "Size", "write_dataset"]

# Goes up with every change that gives other bytes for the same seed and size.
GENERATOR_VERSION = "1"

SFT_STREAM, SLOT_STREAM, EVALUATION_STREAM = range(3)
STREAM_NAMES = ("sft", "slot", "evaluation")
RELATIONS = ("full", "control", None, "substitute")  # None: a removal operator
SEEN_OPERATORS = ("missing-erased",)
HELD_OUT_OPERATORS = ("missing-erased", "missing-shuffled")

# Easier to read than what the tiny model was pretrained on: it leaves a digit's absence visible enough for a short SFT
# stage to teach abstention, and room for RL to differ by arm.
HARDNESS = Hardness(noise=80, fragments=2, fragment_side=2, dropout=0.08, jitter=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much to write, and how hard.

    Attributes:
        sft_items: Base items for SFT: one ``sft_answer`` and one ``sft_certificate`` row each.
        slot_groups: Base items for RL: four slots each, one a relation.
        evaluation_groups: Base items held out: a row for each relation, and for each removal operator that is asked.
        hardness: How hard the cells are to read.
        operators: Views whose evidence is removed that training sees, taken in turn.
        held_out_operators: Those that evaluation asks about.
    """

    sft_items: int
    slot_groups: int
    evaluation_groups: int
    hardness: Hardness = HARDNESS
    operators: tuple[str, ...] = SEEN_OPERATORS
    held_out_operators: tuple[str, ...] = HELD_OUT_OPERATORS

    def options(self) -> dict[str, Any]:
        """Return what the manifest says of it: operators only where they are others than usual."""
        found = asdict(self)
        for name, usual in (("operators", SEEN_OPERATORS), ("held_out_operators", HELD_OUT_OPERATORS)):
            value = found.pop(name)
            if value != usual:
                found[name] = list(value)
        return found


OPERATORS = (*HELD_OUT_OPERATORS, "missing-scattered", "missing-averaged")
# 400 held-out items give Wilson intervals of some 4 points to each side, 50 some 11.
VALIDITY = Size(sft_items=960, slot_groups=240, evaluation_groups=400, held_out_operators=OPERATORS)
SIZES = {
    "quick": Size(sft_items=480, slot_groups=20, evaluation_groups=20),
    "demo": Size(sft_items=960, slot_groups=240, evaluation_groups=50),
    "validity": VALIDITY,
    "validity-operators": replace(VALIDITY, operators=tuple(name for name in OPERATORS if name != "missing-shuffled")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An item with the names it goes by and the views that were written."""

    item: Item
    group_id: str
    split: str
    views: dict[str, View]
    images: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Makes items and writes their images into the temporary folder."""

    place: Path
    seed: int
    hardness: Hardness
    assets: list[dict[str, Any]]

    def entry(self, pool: Pool, stream: int, index: int, view_ids: tuple[str, ...]) -> _Entry:
        """Make an item, write its views' images, and note them among the assets."""
        item = make_item(pool, seed=self.seed, stream=stream, index=index, hardness=self.hardness)
        group_id = f"{STREAM_NAMES[stream]}-{index:06d}"
        views = {view.view_id: view for view in make_views(item, pool, tuple(dict.fromkeys(view_ids)))}
        images = {}
        for view_id, view in views.items():
            asset = self._image(f"images/{group_id}-{view_id}.png", view)
            self.assets.append(asset)
            images[view_id] = {"image_index": 0} | {key: asset[key] for key in ("path", "sha256", "width", "height")}
        return _Entry(item=item, group_id=group_id, split=pool.name, views=views, images=images)

    def _image(self, path: str, view: View) -> dict[str, Any]:
        """Write one image and return its entry in the manifest."""
        from PIL import Image

        stream = io.BytesIO()
        Image.fromarray(view.pixels).save(stream, format="PNG", compress_level=0)
        data = stream.getvalue()
        (self.place / path).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        return {"path": path, "sha256": digest, "bytes": len(data), "width": CANVAS, "height": CANVAS}


def write_dataset(folder: Path, *, seed: int, size: Size) -> None:
    """Write a dataset of digits, whole or not at all.

    Args:
        folder: The dataset's folder; it must not exist, or be empty.
        seed: Seed of everything random.
        size: How much, such as ``SIZES["demo"]``.

    Raises:
        FileExistsError: If the folder has something in it.
        OSError: If it cannot be written.
    """
    with new_folder(folder) as place:
        (place / "images").mkdir()
        train, held_out = load_pool("train"), load_pool("evaluation")
        writer = _Writer(place=place, seed=seed, hardness=size.hardness, assets=[])
        sft = []
        for index in range(size.sft_items):
            cycle, turn = divmod(index, len(RELATIONS))
            view = _training_views(size, cycle)[turn]
            sft.append(writer.entry(train, SFT_STREAM, index, ("full", view)))
        slots = [
            writer.entry(train, SLOT_STREAM, index, _training_views(size, index)) for index in range(size.slot_groups)
        ]
        asked = ("full", "control", *size.held_out_operators, "substitute")
        evaluation = [
            writer.entry(held_out, EVALUATION_STREAM, index, asked) for index in range(size.evaluation_groups)
        ]
        files = [
            _write(place, "slots", "slots.jsonl", [row for entry in slots for row in _slot_rows(entry)]),
            _write(place, "sft", "sft_answer.jsonl", [_sft_row(entry, "sft_answer", "full") for entry in sft]),
            _write(
                place,
                "sft",
                "sft_certificate.jsonl",
                [_sft_row(entry, "sft_certificate", list(entry.views)[-1]) for entry in sft],
            ),
            _write(place, "evaluation", "evaluation.jsonl", [row for entry in evaluation for row in _slot_rows(entry)]),
        ]
        manifest = {
            "schema_version": 1,
            "dataset": f"digits-{seed}",
            "asset_root": ".",
            "files": files,
            "images": sorted(writer.assets, key=lambda asset: str(asset["path"])),
            "counts": {
                "slots": files[0]["rows"],
                "groups": size.slot_groups,
                "sft_rows": files[1]["rows"] + files[2]["rows"],
                "evaluation_rows": files[3]["rows"],
                "images": len(writer.assets),
            },
            "generator": {
                "name": "explicit_learning.data.digits",
                "version": GENERATOR_VERSION,
                "seed": seed,
                "options": size.options(),
            },
        }
        write_json(place / MANIFEST_NAME, manifest)


def _training_views(size: Size, turn: int) -> tuple[str, ...]:
    """Return a group's views, one a relation; removal operators take turns."""
    return tuple(size.operators[turn % len(size.operators)] if view is None else view for view in RELATIONS)


def _write(place: Path, kind: str, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Write one file of rows and return its entry in the manifest."""
    write_rows(place / name, rows)
    size = (place / name).stat().st_size
    return {"kind": kind, "path": name, "sha256": sha256_file(place / name), "bytes": size, "rows": len(rows)}


def _view(entry: _Entry, view_id: str) -> dict[str, Any]:
    view = entry.views[view_id]
    form: dict[str, Any] = {
        "view_id": view_id,
        "role": view.relation,
        "state": view.state,
        "images": [entry.images[view_id]],
    }
    if view.relation == "FULL":
        x0, y0, x1, y1 = entry.item.box
        form["evidence"] = {"boxes": [{"image_index": 0, "x0": x0, "y0": y0, "x1": x1, "y1": y1}]}
    return form


def _slot_rows(entry: _Entry) -> list[dict[str, Any]]:
    """Return a group's rows, one a view: slots of ``train``, evaluation rows of ``evaluation``."""
    item = entry.item
    shared = {
        "schema_version": 2,
        "group_id": entry.group_id,
        "base_id": entry.group_id,
        "split": entry.split,
        "question": item.question,
        "choices": item.choices,
        "answer_type": item.kind,
        "full_view": _view(entry, "full"),
        "full_answer": item.answer,
        "substitute_answer": entry.views["substitute"].target,
    }
    return [
        shared
        | {
            "slot_id": f"{entry.group_id}.{view_id}",
            "relation": view.relation,
            "selected_view": _view(entry, view_id),
        }
        for view_id, view in entry.views.items()
    ]


def _sft_row(entry: _Entry, record_kind: str, view_id: str) -> dict[str, Any]:
    item, view = entry.item, entry.views[view_id]
    return {
        "schema_version": 2,
        "record_id": f"{entry.group_id}.{view_id}.{record_kind}",
        "record_kind": record_kind,
        "group_id": entry.group_id,
        "base_id": entry.group_id,
        "view_id": view_id,
        "split": entry.split,
        "relation": view.relation,
        "state": view.state,
        "question": item.question,
        "choices": item.choices,
        "answer_type": item.kind,
        "images": [entry.images[view_id]],
        "target": view.target,
        "assistant_response": f"<answer>{view.target}</answer>",
    }
