"""Rows against the manifest: each image a row names is listed, with the same hash and size.

The manifest's hash stands for the images' bytes. That holds for a row only if the row names them as the manifest does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.data.rows import SftRow
from explicit_learning.errors import found_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from explicit_learning.data.dataset_manifest import Asset, DatasetManifest
    from explicit_learning.data.group_rules import Located
    from explicit_learning.data.rows import ImageRef, SlotRow
    from explicit_learning.errors.collector import FaultCollector

__all__ = ["check_references"]


def check_references(
    rows: Iterable[Located[SlotRow] | Located[SftRow]], manifest: DatasetManifest, faults: FaultCollector
) -> None:
    """Report images and masks that a row names otherwise than the manifest lists them."""
    listed = {asset.path: asset for asset in manifest.images}
    agreed: set[ImageRef] = set()
    for located in rows:
        row = located.row
        views = (
            [("/images", row.images)]
            if isinstance(row, SftRow)
            else [("/full_view/images", row.full_view.images), ("/selected_view/images", row.selected_view.images)]
        )
        for pointer, images in views:
            for position, image in enumerate(images):
                if image in agreed:
                    continue
                at = f"{pointer}/{position}"
                found = list(_disagreements(image, listed.get(image.path)))
                for field, value, expected in found:
                    _report_reference(faults, located.where, f"{at}/{field}", value, expected)
                if not found:
                    agreed.add(image)
        if not isinstance(row, SftRow):
            _check_masks(located.where, row, listed, faults)


def _check_masks(where: str, row: SlotRow, listed: dict[str, Asset], faults: FaultCollector) -> None:
    for position, mask in enumerate(row.full_view.masks):
        at = f"/full_view/evidence/masks/{position}"
        asset = listed.get(mask.path)
        if asset is None or asset.sha256 != mask.sha256:
            field = "path" if asset is None else "sha256"
            expected = "a file that the manifest lists" if asset is None else asset.sha256
            _report_reference(faults, where, f"{at}/{field}", found_text(getattr(mask, field)), expected)
        elif mask.image_index < len(row.full_view.images):
            image = row.full_view.images[mask.image_index]
            if (asset.width, asset.height) != (image.width, image.height):
                found = f"a mask of {asset.width} by {asset.height} pixels"
                _report_reference(faults, where, at, found, f"{image.width} by {image.height}, as its image")


def _disagreements(image: ImageRef, asset: Asset | None) -> Iterator[tuple[str, str, str]]:
    if asset is None:
        yield "path", found_text(image.path), "a file that the manifest lists"
        return
    for field in ("sha256", "width", "height"):
        if getattr(image, field) != getattr(asset, field):
            yield field, found_text(getattr(image, field)), f"{getattr(asset, field)}, as the manifest lists it"


def _report_reference(faults: FaultCollector, where: str, pointer: str, found: str, expected: str) -> None:
    fix = "make the row and the manifest agree: write both from the same files"
    faults.report(file=where, pointer=pointer, found=found, expected=expected, fix=fix)
