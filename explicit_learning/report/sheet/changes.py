"""What a view changes of its FULL view, pixel by pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.rows import Relation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

__all__ = ["Changes", "changed_pixels", "changes_of", "verdict"]

# Rows that are compared at once: two images of 64 million pixels are in memory already.
BAND = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """How much of an image differs from FULL's.

    Attributes:
        share: Share of all pixels, in [0, 1].
        inside: Share of the evidence's pixels; ``None`` without evidence.
        outside: Share of the pixels outside the evidence; ``None`` without evidence, or where it covers the image.
    """

    share: float
    inside: float | None
    outside: float | None


def changed_pixels(full: Image, other: Image) -> npt.NDArray[np.bool_] | None:
    """Return where two RGB images differ, bool[height, width]; ``None`` for images of two sizes."""
    import numpy as np

    if full.size != other.size:
        return None
    width, height = full.size
    changed = np.empty((height, width), dtype=np.bool_)
    for top in range(0, height, BAND):
        bottom = min(height, top + BAND)
        bands = [np.asarray(image.crop((0, top, width, bottom))) for image in (full, other)]
        changed[top:bottom] = (bands[0] != bands[1]).any(axis=2)
    return changed


def changes_of(changed: npt.NDArray[np.bool_], evidence: npt.NDArray[np.bool_] | None) -> Changes:
    """Return how much is changed.

    Args:
        changed: Where an image differs from FULL's, bool[height, width].
        evidence: Where the evidence is, of the same shape; ``None`` without any.
    """
    total, hits = changed.size, int(changed.sum())
    if evidence is None:
        return Changes(share=hits / total, inside=None, outside=None)
    area, both = int(evidence.sum()), int((changed & evidence).sum())
    return Changes(
        share=hits / total,
        inside=both / area if area else None,
        outside=(hits - both) / (total - area) if total > area else None,
    )


def verdict(relation: Relation, changes: list[Changes]) -> str | None:
    """Return what is wrong with an intervention, as a sentence without its end; ``None`` if nothing is.

    Args:
        relation: What the view is to its base item.
        changes: Of each image of the view that has FULL's size.
    """
    if relation is Relation.FULL or not changes:
        return None
    if not any(each.share for each in changes):
        return f"this {relation.value} view shows exactly the pixels of the FULL view"
    inside = [each.inside for each in changes if each.inside is not None]
    if relation is Relation.CONTROL:
        return "this CONTROL view changes the evidence" if any(inside) else None
    if inside and not any(inside):
        return f"this {relation.value} view leaves the evidence as it is"
    return None
