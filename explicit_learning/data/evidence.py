"""Where the evidence is, in image tokens.

A row gives it in pixels: boxes, or a mask file. The evidence term needs it in image tokens: the share of each image
token's cell that evidence covers. Cells are mapped back to the original image (a resize maps whole image to whole
grid), where the shares are counted exactly, in integers; overlapping boxes cover a pixel once.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from explicit_learning.data.asset_paths import AssetFolder
from explicit_learning.data.image_headers import bombs_are_errors, open_image
from explicit_learning.data.keys import keyed_digest
from explicit_learning.errors import Context, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from explicit_learning.data.image_grid import Grid, ResizeRules
    from explicit_learning.data.rows import EvidenceBox, EvidenceMask, View

__all__ = [
    "box_shares",
    "evidence_donors",
    "evidence_sources",
    "marked_pixels",
    "mask_pixels",
    "mask_shares",
    "view_shares",
]

CONTEXT = Context(gate="data", exit_code=ExitCode.IO)
_SHUFFLE_DOMAIN = "explicit-learning/shuffled-evidence/1"
# Bands of an image that hold how opaque a pixel is, not what it shows.
_ALPHA_BANDS = frozenset({"A", "a"})


def box_shares(boxes: Iterable[EvidenceBox], *, width: int, height: int, grid: Grid) -> tuple[float, ...]:
    """Return the share of every image token's cell that the union of boxes covers, token by token, in [0, 1].

    Args:
        boxes: Boxes in one image, half-open, in pixels after EXIF rotation; parts outside the image count as nothing.
        width: The image's width after EXIF rotation, in pixels.
        height: Its height likewise.
        grid: The image's cells.
    """
    # In units of 1/columns and 1/rows pixel, cells and boxes both have whole-numbered edges: a cell is width by height.
    covered = [0] * grid.tokens
    for left, top, right, bottom in _disjoint(boxes, width, height):
        scaled = (left * grid.columns, top * grid.rows, right * grid.columns, bottom * grid.rows)
        for row, down in _overlaps(scaled[1], scaled[3], height):
            for column, across in _overlaps(scaled[0], scaled[2], width):
                covered[row * grid.columns + column] += down * across
    return tuple(area / (width * height) for area in covered)


def _overlaps(start: int, end: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield (cell, overlap) for an interval over consecutive cells of one length."""
    for cell in range(start // length, -(-end // length)):
        yield cell, min(end, (cell + 1) * length) - max(start, cell * length)


def _disjoint(boxes: Iterable[EvidenceBox], width: int, height: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (left, top, right, bottom) rectangles that do not overlap and cover what the boxes cover of the image."""
    clipped = [(max(box.x0, 0), max(box.y0, 0), min(box.x1, width), min(box.y1, height)) for box in boxes]
    solid = [box for box in clipped if box[0] < box[2] and box[1] < box[3]]
    edges = sorted({edge for box in solid for edge in (box[1], box[3])})
    for top, bottom in itertools.pairwise(edges):
        spans = sorted((box[0], box[2]) for box in solid if box[1] <= top and bottom <= box[3])
        reached = 0
        for left, right in spans:
            if right > reached:
                yield max(left, reached), top, right, bottom
                reached = right


def mask_shares(path: Path, *, width: int, height: int, grid: Grid) -> tuple[float, ...]:
    """Return the share of every image token's cell that a mask marks, token by token, in [0, 1] (`marked_pixels`).

    Args:
        path: The mask file, of the image's size after EXIF rotation.
        width: The image's width after EXIF rotation, in pixels.
        height: Its height likewise.
        grid: The image's cells.

    Raises:
        ValueError: If the mask has another size.
        OSError: If it cannot be read.
    """
    import numpy as np

    marked = mask_pixels(path, width=width, height=height).astype(np.int64)
    areas = _binned(_binned(marked, grid.columns).T, grid.rows).T
    return tuple((areas / (width * height)).ravel().tolist())


def mask_pixels(path: Path, *, width: int, height: int) -> npt.NDArray[np.bool_]:
    """Return which pixels a mask file marks (`marked_pixels`); bool[height, width].

    Args:
        path: The mask file, of the image's size after EXIF rotation.
        width: The image's width after EXIF rotation, in pixels.
        height: Its height likewise.

    Raises:
        ValueError: If the mask has another size.
        OSError: If it cannot be read.
    """
    with bombs_are_errors(), open_image(path) as opened:
        marked = marked_pixels(opened)
    if marked.shape != (height, width):
        raise ValueError(
            f"{path.name}: a mask of {marked.shape[1]} by {marked.shape[0]} pixels for {width} by {height}"
        )
    return marked


def marked_pixels(mask: Image) -> npt.NDArray[np.bool_]:
    """Return which pixels of a mask are evidence, as bool[height, width] after EXIF rotation.

    Every pixel that is not 0 is evidence; an alpha channel does not count, and a palette's entry 0 is 0.

    Raises:
        OSError: If it cannot be decoded.
    """
    import numpy as np
    from PIL import ImageOps

    image = ImageOps.exif_transpose(mask)
    pixels: npt.NDArray[np.generic] = np.asarray(image)
    if pixels.ndim == 3:  # noqa: PLR2004 - rows, columns, bands
        shown = [index for index, band in enumerate(image.getbands()) if band not in _ALPHA_BANDS]
        pixels = pixels[:, :, shown].max(axis=2)
    marked: npt.NDArray[np.bool_] = pixels != 0
    return marked


def _binned(values: npt.NDArray[np.int64], bins: int) -> npt.NDArray[np.int64]:
    """Return the sums of each row over equal bins along the last axis, in units of 1/bins of a column; int64."""
    import numpy as np

    length = values.shape[1]
    running = np.concatenate([np.zeros((len(values), 1), np.int64), values.cumsum(axis=1)], axis=1)
    whole, part = np.divmod(np.arange(bins + 1) * length, bins)
    inside = np.pad(values, ((0, 0), (0, 1)))[:, whole]
    sums: npt.NDArray[np.int64] = np.diff(running[:, whole] * bins + inside * part, axis=1)
    return sums


def view_shares(
    view: View, rules: ResizeRules, *, asset_root: Path, evidence_of: View | None = None
) -> tuple[float, ...] | None:
    """Return the covered share of every image token of a view, image after image; ``None`` without evidence.

    Args:
        view: The FULL view whose image tokens are asked about.
        rules: The model's resize rules.
        asset_root: Folder that mask paths start at.
        evidence_of: Another FULL view to take the evidence from, at the same places relative to its own images' sizes;
            images that it does not have are without evidence.

    Raises:
        Refusal: If a mask is missing, or is not below the asset root.
        ValueError: If a mask has another size than its image, or an image cannot be resized.
        OSError: If a mask cannot be read.
    """
    source = evidence_of or view
    if not source.boxes and not source.masks:
        return None
    sizes = {image.image_index: (image.width, image.height) for image in source.images}
    masks = {mask.image_index: mask for mask in source.masks}
    shares: list[float] = []
    for image in view.images:
        grid = rules.grid(width=image.width, height=image.height)
        index = image.image_index
        if index not in sizes:
            shares += [0.0] * grid.tokens
            continue
        width, height = sizes[index]
        if index in masks:
            shares += mask_shares(_mask_file(masks[index], asset_root), width=width, height=height, grid=grid)
        else:
            boxes = (box for box in source.boxes if box.image_index == index)
            shares += box_shares(boxes, width=width, height=height, grid=grid)
    return tuple(shares)


def _mask_file(mask: EvidenceMask, asset_root: Path) -> Path:
    AssetFolder(asset_root).size(mask.path, CONTEXT.at(asset_root / mask.path))
    return asset_root / mask.path


def evidence_donors(group_ids: Iterable[str], *, seed: int) -> dict[str, str]:
    """Return whose evidence each group gets when evidence is shuffled between groups.

    The groups, in the order of a hash keyed by the seed, form one cycle, and each gets its successor's: a permutation
    in which no group keeps its own, as long as there are two. The order of the ids does not matter.

    Args:
        group_ids: The groups that have evidence.
        seed: The plan's seed.
    """

    def key(group_id: str) -> bytes:
        return keyed_digest(_SHUFFLE_DOMAIN, seed, group_id)

    cycle = sorted(set(group_ids), key=key)
    return dict(zip(cycle, cycle[1:] + cycle[:1], strict=True))


def evidence_sources(full_views: Mapping[str, View], *, shuffled: bool, seed: int) -> dict[str, View]:
    """Return the FULL view whose evidence each group is given: its own, or that of its donor where it is shuffled.

    Args:
        full_views: Every group's FULL view, by group id.
        shuffled: Whether evidence is shuffled between groups; a group without evidence takes no part in that.
        seed: The plan's seed.
    """
    having = [group_id for group_id, view in full_views.items() if view.boxes or view.masks]
    donors = evidence_donors(having, seed=seed) if shuffled else {}
    return {group_id: full_views[donors.get(group_id, group_id)] for group_id in full_views}
