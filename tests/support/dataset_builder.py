"""A small good dataset, to be broken one way at a time."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING, Any

from PIL import Image

from explicit_learning.files.jsonl import write_rows

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault

Json = dict[str, Any]

GRAY = {"full": 10, "control": 20, "missing": 30, "substitute": 40}
ROLES = {name: name.upper() for name in GRAY}


def image_bytes(folder: Path, name: str, gray: int, size: tuple[int, int] = (8, 6)) -> Json:
    """Write a small PNG and return its entry in a manifest."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, gray).save(path)
    return asset_entry(folder, name, size)


def asset_entry(folder: Path, name: str, size: tuple[int, int]) -> Json:
    """Return a manifest's entry for a file as it is now."""
    data = (folder / name).read_bytes()
    return {
        "path": name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "width": size[0],
        "height": size[1],
    }


class Builder:
    """Rows and images of one training group and one held-out group; change what it holds, then `write` it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images: list[Json] = []
        self.slots = self._group("train-0", "train", 0)
        self.evaluation = self._group("held-out-0", "evaluation", 100)
        self.sft = [self._certificate(slot) for slot in self.slots]
        self.changes: Json = {}

    def _group(self, name: str, split: str, shade: int) -> list[Json]:
        views: Json = {}
        for view_id, gray in GRAY.items():
            entry = image_bytes(self.folder, f"images/{name}-{view_id}.png", gray + shade)
            self.images.append(entry)
            image = {"image_index": 0} | {key: value for key, value in entry.items() if key != "bytes"}
            views[view_id] = {"view_id": view_id, "role": ROLES[view_id], "state": view_id, "images": [image]}
        views["full"]["evidence"] = {"boxes": [{"image_index": 0, "x0": 0, "y0": 0, "x1": 8, "y1": 6}]}
        slots = []
        for view_id, role in ROLES.items():
            slot = {
                "schema_version": 2,
                "slot_id": f"{name}.{view_id}",
                "group_id": name,
                "base_id": name,
                "split": split,
                "question": "Which digit is in the lower left cell?",
                "choices": [],
                "answer_type": "number",
                "relation": role,
                "full_view": views["full"],
                "selected_view": views[view_id],
                "full_answer": "7",
            }
            slots.append(slot | {"substitute_answer": "3"} if role == "SUBSTITUTE" else slot)
        unshared: list[Json] = json.loads(json.dumps(slots))
        return unshared

    def _certificate(self, slot: Json) -> Json:
        view = slot["selected_view"]
        target = {"MISSING": "", "SUBSTITUTE": "3"}.get(slot["relation"], "7")
        shared = ("schema_version", "group_id", "base_id", "split", "relation", "question", "choices", "answer_type")
        return copy.deepcopy(
            {key: slot[key] for key in shared}
            | {
                "record_id": f"{slot['slot_id']}.sft",
                "record_kind": "sft_certificate",
                "view_id": view["view_id"],
                "state": view["state"],
                "images": view["images"],
                "target": target,
                "assistant_response": f"<answer>{target}</answer>",
            }
        )

    def write(self) -> Path:
        """Write rows and a manifest that fits them, apply ``changes`` to the manifest, and return its path."""
        files = []
        for kind, rows in (("slots", self.slots), ("sft", self.sft), ("evaluation", self.evaluation)):
            if rows:
                write_rows(self.folder / f"{kind}.jsonl", rows)
                entry = asset_entry(self.folder, f"{kind}.jsonl", (0, 0))
                kept = {key: entry[key] for key in ("path", "sha256", "bytes")}
                files.append({"kind": kind, "rows": len(rows)} | kept)
        manifest = {
            "schema_version": 1,
            "dataset": "test",
            "asset_root": ".",
            "files": files,
            "images": self.images,
            "counts": {
                "slots": len(self.slots),
                "groups": len({slot["group_id"] for slot in self.slots}),
                "sft_rows": len(self.sft),
                "evaluation_rows": len(self.evaluation),
                "images": len(self.images),
            },
            "generator": {"name": "tests", "version": "1", "seed": None, "options": {}},
        } | self.changes
        path = self.folder / "dataset-manifest.json"
        path.write_text(json.dumps(manifest))
        return path


def brief(faults: tuple[Fault, ...] | list[Fault]) -> list[tuple[str, str]]:
    """Return (file name with line, pointer) of every fault: where a user is sent."""
    return [((fault.file or "").rpartition("/")[2], fault.pointer or "") for fault in faults]
