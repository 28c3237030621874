"""Sources drawn for tests and benchmarks: coloured boxes on soft backgrounds, with questions about their colour."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 60), "blue": (30, 60, 220), "yellow": (230, 210, 40)}


def drawn_picture(index: int, side: int) -> tuple[NDArray[np.uint8], str, list[int]]:
    """Return a picture (side, side, 3), the colour of the box in it, and the box: left, top, right, bottom."""
    generator = np.random.default_rng([7, index])
    coarse = generator.integers(0, 256, (9, 9, 3)).astype(np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)).copy()
    width, height = (int(size) for size in generator.integers(side // 6, side // 3, 2))
    x, y = int(generator.integers(0, side - width)), int(generator.integers(0, side - height))
    name = list(COLOURS)[int(generator.integers(len(COLOURS)))]
    pixels[y : y + height, x : x + width] = COLOURS[name]
    return pixels, name, [x, y, x + width, y + height]


def drawn_row(index: int, folder: Path, side: int) -> dict[str, Any]:
    """Write a picture to ``folder/images``, and return its row."""
    pixels, colour, box = drawn_picture(index, side)
    path = folder / "images" / f"{index}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, compress_level=1)
    image = f"images/{index}.png"
    return {
        "id": f"row-{index:06d}",
        "image": image,
        "question": "Which colour has the box?",
        "answer": colour,
        "boxes": [box],
    }


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSON Lines, and return the file's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def drawn_source(folder: Path, count: int, *, side: int = 48) -> Path:
    """Write a source of rows with one picture each, and return its file."""
    return write_jsonl(folder / "rows.jsonl", [drawn_row(index, folder, side) for index in range(count)])
