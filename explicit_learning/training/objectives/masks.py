"""Which squares of an image PAPO blacks out, and how.

A mask belongs to a slot visit: all generations of the visit are scored under the same one, and a resumed run, another
rank or another batch draws exactly the same. So it comes from a generator of its own, keyed by (seed, slot, visit), and
never from torch's.

It is applied to ``pixel_values``, after the processor. Blacking out the picture before the processor would not be
exact: its resize blurs a square's border into the neighbours, and the squares would not fit its grid. ``pixel_values``
holds every pixel of the resized image once (per frame), rescaled and normalised, only in another order. Writing black's
value there equals processing an image whose resized pixels were blacked out; a test shows it bit for bit.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["PixelLayout", "black_out", "draw_squares", "mask_generator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLayout:
    """How an image processor writes a resized image into ``pixel_values``.

    Attributes:
        patch: Side of a patch. Unit: pixels.
        merge: Patches along one side of an image token.
        frames: Temporal patch size: how many times every patch holds the same pixels.
        black: Value of a black pixel in each channel, after rescaling and normalising.
    """

    patch: int
    merge: int
    frames: int
    black: tuple[float, ...]

    @classmethod
    def of(cls, image_processor: Any) -> PixelLayout:
        """Return the layout of Qwen's image processor; black's value is read from a black image that it processed."""
        import torch

        patch, frames = image_processor.patch_size, image_processor.temporal_patch_size
        side = patch * image_processor.merge_size
        image = torch.zeros(3, side, side, dtype=torch.uint8)
        values = image_processor(images=[image], return_tensors="pt")["pixel_values"]
        black = values.view(-1, 3, frames, patch, patch)[0, :, 0, 0, 0]
        return cls(patch=patch, merge=image_processor.merge_size, frames=frames, black=tuple(black.tolist()))


def mask_generator(*, seed: int, slot_id: str, visit: int) -> random.Random:
    """Return the generator that a slot visit's masks are drawn from.

    It is Python's own, whose ``random()`` gives the same numbers in every version and on every machine.
    """
    key = hashlib.sha256(f"papo-mask\0{seed}\0{slot_id}\0{visit}".encode()).digest()
    return random.Random(int.from_bytes(key, "big"))  # noqa: S311 - reproducible, not secret


def draw_squares(
    generator: random.Random, *, height: int, width: int, side: int, probability: float
) -> list[list[bool]]:
    """Return which squares of one resized image are blacked out, independently, row by row from the upper left.

    Args:
        generator: The slot visit's generator; a view's images draw from it in their order.
        height: Height of the resized image, in pixels.
        width: Its width, in pixels.
        side: Side of a square, in pixels; squares at the right and lower border may be cut off.
        probability: Probability that a square is blacked out.
    """
    rows, columns = -(-height // side), -(-width // side)
    return [[generator.random() < probability for _ in range(columns)] for _ in range(rows)]


def black_out(
    pixel_values: Tensor, image_grid_thw: Tensor, squares: Sequence[list[list[bool]]], *, side: int, layout: PixelLayout
) -> Tensor:
    """Return a copy of ``pixel_values`` with squares of the resized images blacked out.

    Args:
        pixel_values: Shape (patches of all images, channels x frames x patch x patch), floating point.
        image_grid_thw: Shape (images, 3), int64: 1, and the patches of each image downwards and across.
        squares: For each image, which squares are blacked out.
        side: Side of a square, in pixels.
        layout: How the processor writes pixels.
    """
    import torch

    channels, patch = len(layout.black), layout.patch
    black = torch.tensor(layout.black, dtype=pixel_values.dtype, device=pixel_values.device).view(1, channels, 1, 1, 1)
    pieces = []
    sizes = image_grid_thw.prod(dim=-1).tolist()
    for patches, grid, chosen in zip(pixel_values.split(sizes), image_grid_thw.tolist(), squares, strict=True):
        covered = _in_patch_order(chosen, grid[1], grid[2], side=side, layout=layout).to(pixel_values.device)
        values = patches.view(-1, channels, layout.frames, patch, patch)
        masked = torch.where(covered.view(-1, 1, 1, patch, patch), black, values)
        pieces.append(masked.view(patches.shape))
    return torch.cat(pieces)


def _in_patch_order(squares: list[list[bool]], rows: int, columns: int, *, side: int, layout: PixelLayout) -> Tensor:
    """Return which pixels are covered, patch by patch in the processor's order; shape (patches, patch, patch), bool."""
    import torch

    patch, merge = layout.patch, layout.merge
    pixels = torch.tensor(squares).repeat_interleave(side, 0).repeat_interleave(side, 1)
    pixels = pixels[: rows * patch, : columns * patch]
    # Rows and columns each split into (cell, patch in the cell, pixel in the patch); cells are written row by row, and
    # the patches of a cell one after another.
    split = pixels.view(rows // merge, merge, patch, columns // merge, merge, patch)
    return split.permute(0, 3, 1, 4, 2, 5).reshape(rows * columns, patch, patch)
