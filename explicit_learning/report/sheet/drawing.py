"""Images as a contact sheet shows them: of one size, with the evidence outlined, or with what changed in colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    Mask = npt.NDArray[np.bool_]

__all__ = ["TILE", "box_mask", "difference_tile", "is_enlarged", "tile"]

# Longer side of what is shown, at most. Unit: pixels.
TILE = 240
# A bright line with a dark one around it is seen on any picture, and with any colour vision.
LINE, EDGE = (255, 214, 0), (0, 0, 0)
CHANGED = (214, 0, 147)
LINE_WIDTH, EDGE_WIDTH = 2, 1


def box_mask(boxes: list[tuple[int, int, int, int]], *, width: int, height: int) -> Mask:
    """Return the union of half-open boxes (left, top, right, bottom) in an image, bool[height, width]."""
    import numpy as np

    mask = np.zeros((height, width), dtype=np.bool_)
    for left, top, right, bottom in boxes:
        mask[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = True
    return mask


def is_enlarged(image: Image) -> bool:
    """Return whether an image is so small that its pixels are shown enlarged."""
    return 2 * max(image.size) <= TILE


def tile(image: Image, evidence: Mask | None) -> Image:
    """Return an RGB image in the size of the sheet, its evidence outlined.

    Args:
        image: The image, RGB.
        evidence: Where the evidence is, bool[height, width]; ``None`` without any.
    """
    from PIL import Image as Images

    resample = Images.Resampling.NEAREST if is_enlarged(image) else Images.Resampling.BOX
    shown = image.resize(_shown_size(image.size), resample)
    return shown if evidence is None else _outlined(shown, evidence)


def difference_tile(full: Image, changed: Mask, evidence: Mask | None) -> Image:
    """Return FULL pale and grey, with every changed pixel in one colour and the evidence outlined.

    Args:
        full: The FULL view's image, RGB.
        changed: Where the other view's image differs, bool[height, width].
        evidence: Where the evidence is, of the same shape; ``None`` without any.
    """
    from PIL import Image as Images

    grey = tile(full, None).convert("L")
    shown = Images.blend(grey, Images.new("L", grey.size, 255), 0.6).convert("RGB")
    shown.paste(CHANGED, mask=_picture(_scaled(changed, grey.size)))
    return shown if evidence is None else _outlined(shown, evidence)


def _shown_size(size: tuple[int, int]) -> tuple[int, int]:
    longest = max(size)
    if 2 * longest <= TILE:
        return size[0] * (TILE // longest), size[1] * (TILE // longest)
    if longest <= TILE:
        return size
    return max(1, size[0] * TILE // longest), max(1, size[1] * TILE // longest)


def _scaled(mask: Mask, size: tuple[int, int]) -> Mask:
    """Return a mask in another size (width, height); no marked pixel is lost, however small it becomes."""
    import numpy as np

    for axis, length in ((0, size[1]), (1, size[0])):
        have = mask.shape[axis]
        if length >= have:
            mask = np.repeat(mask, length // have, axis=axis)
        else:
            mask = np.logical_or.reduceat(mask, np.arange(length) * have // length, axis=axis)
    return mask


def _outlined(image: Image, evidence: Mask) -> Image:
    """Return an image with a line around the evidence; along the image's edges the line is inside."""
    import numpy as np

    mask = _scaled(evidence, image.size)
    line = _grown(mask, LINE_WIDTH) & ~mask
    edge = _grown(mask, LINE_WIDTH + EDGE_WIDTH) & ~_grown(mask, LINE_WIDTH)
    border = np.ones_like(mask)
    border[LINE_WIDTH:-LINE_WIDTH, LINE_WIDTH:-LINE_WIDTH] = False
    shown = image.copy()
    shown.paste(EDGE, mask=_picture(edge))
    shown.paste(LINE, mask=_picture(line | (mask & border)))
    return shown


def _grown(mask: Mask, by: int) -> Mask:
    """Return a mask grown by a number of pixels in each direction."""
    import numpy as np
    from PIL import ImageFilter

    return np.asarray(_picture(mask).filter(ImageFilter.MaxFilter(2 * by + 1))) > 0


def _picture(mask: Mask) -> Image:
    """Return a mask as a grey image, 255 where it is set."""
    import numpy as np
    from PIL import Image as Images

    return Images.fromarray(mask.astype(np.uint8) * 255)
