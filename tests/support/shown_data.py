"""A dataset whose views differ in known pixels, to be shown: 20 by 10 pixels, evidence in the left half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import Image

from tests.support.dataset_builder import Builder, asset_entry

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BOX", "SIZE", "shown_dataset"]

SIZE = (20, 10)
BOX = (0, 0, 10, 10)
# What each view paints over FULL's grey: left, top, right, bottom.
CHANGES = {"full": (0, 0, 0, 0), "control": (10, 0, 20, 5), "missing": (0, 0, 10, 10), "substitute": (0, 0, 5, 10)}


def shown_dataset(folder: Path, *, changes: dict[str, tuple[int, int, int, int]] | None = None) -> Builder:
    """Return a dataset with one group to train on and one held out; ``changes`` replaces what views paint."""
    built = Builder(folder)
    built.images = []
    for shade, rows in ((90, built.slots), (150, built.evaluation)):
        for view in _views(rows):
            image = view["images"][0]
            path = image["path"]
            picture = Image.new("RGB", SIZE, (shade, shade, shade))
            left, top, right, bottom = (CHANGES | (changes or {}))[view["view_id"]]
            picture.paste((200, 20, 20), (left, top, right, bottom))
            picture.save(folder / path)
            entry = asset_entry(folder, path, SIZE)
            image.update({key: entry[key] for key in ("sha256", "width", "height")})
            if entry not in built.images:
                built.images.append(entry)
    for row in (*built.slots, *built.evaluation):
        left, top, right, bottom = BOX
        box = {"image_index": 0, "x0": left, "y0": top, "x1": right, "y1": bottom}
        for view in (row["full_view"], row["selected_view"]):
            if view["role"] == "FULL":
                view["evidence"] = {"boxes": [box]}
    built.sft = []
    return built


def _views(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [view for row in rows for view in (row["full_view"], row["selected_view"])]
