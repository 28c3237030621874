"""Blank images, for what a model answers without seeing anything."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

    from explicit_learning.data.rows import ImageRef

__all__ = ["BLANK_COLOUR", "BlankImages"]

BLANK_COLOUR = (128, 128, 128)


class BlankImages:
    """Images of one grey, each as large as the one in whose place it is shown."""

    def load(self, image: ImageRef, *, row: str | None = None) -> Image:
        """Return a blank image of an image's size; do not write to it, it is kept."""
        del row
        return _blank(image.width, image.height)


@lru_cache(maxsize=16)
def _blank(width: int, height: int) -> Image:
    from PIL import Image as Images

    return Images.new("RGB", (width, height), BLANK_COLOUR)
