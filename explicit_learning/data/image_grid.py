"""How many image tokens an image has, and which part of it each one sees, from its size alone.

Qwen3.5's image processor resizes an image so that both sides are multiples of one *cell* (a patch's side times the
merge factor, 32 pixels), keeping the number of pixels between two bounds. One cell of the resized image is one image
token, row by row. Evidence, masks and the check of prompt lengths need tokens without a processor and
get them here; a test compares these rules with the processor's own on many sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.strict_json import load_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_ASPECT_RATIO", "PROCESSOR_FILE", "Grid", "ResizeRules"]

CONTEXT = Context(
    gate="model",
    fix="restore the model's image processor settings: the number of image tokens follows from them",
)
# Where transformers looks for an image processor's settings: in a block of the first, else in the second.
JOINT_FILE = "processor_config.json"
PROCESSOR_FILE = "preprocessor_config.json"
# Longer side over shorter side; the processor refuses more.
MAX_ASPECT_RATIO = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """An image after the processor's resize.

    Attributes:
        height: Height of the resized image. Unit: pixels.
        width: Its width. Unit: pixels.
        rows: Image tokens from top to bottom.
        columns: Image tokens from left to right.
    """

    height: int
    width: int
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        """Number of image tokens; token ``row * columns + column`` sees that cell."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRules:
    """What a model's image processor does to an image's size.

    Attributes:
        patch: Side of the vision encoder's patch. Unit: pixels.
        merge: Patches along one side of an image token.
        min_pixels: Fewest pixels of a resized image.
        max_pixels: Most pixels of a resized image; a thin image may keep more, since no side becomes less than a cell.
    """

    patch: int
    merge: int
    min_pixels: int
    max_pixels: int

    @property
    def cell(self) -> int:
        """Side of one image token's cell in the resized image. Unit: pixels."""
        return self.patch * self.merge

    @classmethod
    def of_model(cls, folder: Path, *, max_image_tokens: int | None) -> ResizeRules:
        """Return the rules that a model folder states, with a plan's limit.

        Args:
            folder: The model's folder.
            max_image_tokens: The plan's `generation.max_image_tokens`; ``None`` leaves the model's own limit.

        Raises:
            Refusal: If the file is missing, is not JSON, or does not state them, or if the plan's limit is below the
                fewest tokens that the model enlarges an image to.
        """
        at, config = _settings(folder)
        size = config.get("size") or {}
        values = {
            "patch_size": config.get("patch_size"),
            "merge_size": config.get("merge_size"),
            "size/shortest_edge": config.get("min_pixels") or size.get("shortest_edge"),
            "size/longest_edge": config.get("max_pixels") or size.get("longest_edge"),
        }
        faults = [
            at.fault(pointer=f"/{name}", found=found_text(value), expected="an integer above 0")
            for name, value in values.items()
            if not _is_count(value)
        ]
        if faults:
            raise Refusal(faults)
        patch, merge, fewest, most = (int(value or 0) for value in values.values())
        if max_image_tokens is not None:
            pixels = max_image_tokens * (patch * merge) ** 2
            if pixels < fewest:
                least = -(-fewest // (patch * merge) ** 2)
                raise at.refusal(
                    pointer="/size/shortest_edge",
                    found=f"{fewest:,} pixels, to which smaller images are enlarged: {least} tokens",
                    expected=f"at most generation.max_image_tokens, {max_image_tokens}",
                    fix=f"set generation.max_image_tokens to {least} or more",
                )
            most = min(most, pixels)
        return cls(patch=patch, merge=merge, min_pixels=fewest, max_pixels=most)

    def grid(self, *, width: int, height: int) -> Grid:
        """Return what an image of a size (after EXIF rotation, in pixels) becomes.

        The rule is Qwen2-VL's ``smart_resize``, which Qwen3.5 uses: round both sides to whole cells, and where the
        product leaves the bounds, scale both sides by one factor, rounding down from above and up from below. No side
        becomes less than a cell: an image that is too thin for that stays above the upper bound.

        Raises:
            ValueError: If the longer side is more than `MAX_ASPECT_RATIO` times the shorter one.
        """
        if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
            raise ValueError(f"{width} by {height} pixels: one side is over {MAX_ASPECT_RATIO} times the other")
        cell = self.cell
        rows, columns = round(height / cell), round(width / cell)
        if rows * columns * cell**2 > self.max_pixels:
            shrink = math.sqrt(width * height / self.max_pixels)
            rows, columns = (max(1, math.floor(side / shrink / cell)) for side in (height, width))
        elif rows * columns * cell**2 < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (width * height))
            rows, columns = (math.ceil(side * grow / cell) for side in (height, width))
        return Grid(height=rows * cell, width=columns * cell, rows=rows, columns=columns)


def _settings(folder: Path) -> tuple[Context, dict[str, Any]]:
    """Return the image processor's settings, and the context of faults in the file that states them."""
    joint = folder / JOINT_FILE
    if joint.is_file():
        settings = load_json(joint, gate=CONTEXT.gate)
        if isinstance(settings, dict) and isinstance(settings.get("image_processor"), dict):
            return CONTEXT.at(joint), settings["image_processor"]
    path = folder / PROCESSOR_FILE
    settings = load_json(path, gate=CONTEXT.gate)
    return CONTEXT.at(path), settings if isinstance(settings, dict) else {}


def _is_count(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
