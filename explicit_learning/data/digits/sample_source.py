"""Writes a small source of a person's own form: what `el init` gives for `el data build` to read.

Pictures, questions, answers and evidence are those of the embedded digits, so that the shipped model can learn from
them; nothing else in it is special. The same seed gives the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.data.digits.items import Item, View, make_item, make_views
from explicit_learning.data.digits.pools import load_pool
from explicit_learning.files.jsonl import write_rows

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SAMPLE_ITEMS", "write_sample_source"]

SAMPLE_ITEMS = 240
# Beside the streams of the embedded dataset, so that its items are other ones.
SAMPLE_STREAM = 3


def write_sample_source(folder: Path, *, seed: int, items: int = SAMPLE_ITEMS) -> None:
    """Write ``items.jsonl`` and the pictures it names.

    Args:
        folder: An empty folder.
        seed: Seed of everything random.
        items: How many base items.

    Raises:
        OSError: If it cannot be written.
    """
    (folder / "images").mkdir()
    pool = load_pool("train")
    rows = []
    for index in range(items):
        item = make_item(pool, seed=seed, stream=SAMPLE_STREAM, index=index)
        name = f"digits-{index:04d}"
        paths = {view.view_id: _write(folder, name, view) for view in make_views(item, pool, ("full", "substitute"))}
        rows.append(_row(name, item, paths, make_views(item, pool, ("substitute",))[0].target))
    write_rows(folder / "items.jsonl", rows)


def _write(folder: Path, name: str, view: View) -> str:
    from PIL import Image

    path = f"images/{name}{'' if view.view_id == 'full' else '-' + view.view_id}.png"
    Image.fromarray(view.pixels).save(folder / path, format="PNG", compress_level=0)  # compressors differ by processor
    return path


def _row(name: str, item: Item, paths: dict[str, str], substitute: str) -> dict[str, Any]:
    choices = {"choices": item.choices} if item.choices else {}
    return {
        "id": name,
        "image": paths["full"],
        "question": item.question,
        "answer": item.answer,
        "answer_type": item.kind,
        "evidence": {"boxes": [list(item.digit_box)]},
        "substitute": {"image": paths["substitute"], "answer": substitute},
    } | choices
