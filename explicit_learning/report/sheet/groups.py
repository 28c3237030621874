"""The groups of a contact sheet: their images loaded, drawn and compared with FULL's, one group at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from explicit_learning.data.answers import ABSTENTION
from explicit_learning.data.asset_paths import AssetFolder
from explicit_learning.data.evidence import mask_pixels
from explicit_learning.data.images import ImageStore
from explicit_learning.data.rows import Relation
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.report.sheet.changes import Changes, changed_pixels, changes_of, verdict
from explicit_learning.report.sheet.drawing import box_mask, difference_tile, is_enlarged, tile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from explicit_learning.data.rows import ImageRef
    from explicit_learning.data.summary.sampling import SampledGroup, SampledView
    from explicit_learning.errors import FaultCollector

__all__ = ["Picture", "SheetGroup", "SheetView", "sheet_groups"]

FIX = "restore the file, or make the dataset again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image of a view on the sheet.

    Attributes:
        path: Its file, below the asset root.
        size: Its own size, in words.
        tile: What is shown, RGB; ``None`` for an image that cannot be shown.
        difference: What differs from FULL's image; ``None`` for FULL's own and for what cannot be compared.
        enlarged: Whether its pixels are shown enlarged.
        note: How much of it is changed, why it is not compared, or why it or its evidence cannot be shown; or empty.
    """

    path: str
    size: str
    tile: Image | None
    difference: Image | None
    enlarged: bool
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetView:
    """A view on the sheet; ``remark`` says what is wrong with its intervention, if anything is."""

    view: SampledView
    pictures: tuple[Picture, ...]
    target: str
    remark: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetGroup:
    """A group on the sheet."""

    group: SampledGroup
    views: tuple[SheetView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Full:
    """An image of the FULL view and where its evidence is, bool[height, width] or ``None``."""

    image: Image
    evidence: npt.NDArray[np.bool_] | None


def sheet_groups(groups: Iterable[SampledGroup], asset_root: Path, faults: FaultCollector) -> Iterator[SheetGroup]:
    """Yield groups as they are shown; an image that cannot be read is a fault, and a picture that says why.

    Args:
        groups: The groups.
        asset_root: Where their images lie.
        faults: Takes what is wrong with images and masks, each file once.
    """
    loader = _Loader(asset_root, faults)
    for group in groups:
        full: dict[int, _Full] = {}
        has_full = any(view.relation is Relation.FULL for view in group.views)
        shown = [_view(view, full, loader, has_full=has_full) for view in group.views]  # FULL is the first
        yield SheetGroup(group=group, views=tuple(shown))


def _view(view: SampledView, full: dict[int, _Full], loader: _Loader, *, has_full: bool) -> SheetView:
    pictures, changes = [], []
    for image in view.images:
        loaded = loader.load(image)
        if isinstance(loaded, str):
            pictures.append(_picture(image, note=loaded))
        elif view.relation is Relation.FULL:
            evidence, note = loader.evidence(view, image)
            full.setdefault(image.image_index, _Full(image=loaded, evidence=evidence))
            pictures.append(_picture(image, tile(loaded, evidence), enlarged=is_enlarged(loaded), note=note))
        else:
            picture, change = _compared(image, loaded, full.get(image.image_index), has_full=has_full)
            pictures.append(picture)
            changes += [change] if change else []
    if view.target is None:
        target = "the row does not say"
    else:
        target = "abstention (an empty answer)" if view.target == ABSTENTION else view.target
    return SheetView(view=view, pictures=tuple(pictures), target=target, remark=verdict(view.relation, changes))


def _compared(image: ImageRef, loaded: Image, full: _Full | None, *, has_full: bool) -> tuple[Picture, Changes | None]:
    shown, enlarged = tile(loaded, None), is_enlarged(loaded)
    changed = changed_pixels(full.image, loaded) if full else None
    if full is None or changed is None:
        why = "of another size than FULL's image" if full else "FULL's image is missing" if has_full else "without FULL"
        return _picture(image, shown, enlarged=enlarged, note=f"not compared: {why}"), None
    found = changes_of(changed, full.evidence)
    parts = [f"changed: {_percent(found.share)} of all pixels"]
    if found.inside is not None:
        parts.append(f"{_percent(found.inside)} of the evidence")
    if found.outside is not None:
        parts.append(f"{_percent(found.outside)} of the rest")
    difference = difference_tile(full.image, changed, full.evidence)
    return _picture(image, shown, difference, enlarged=enlarged, note=", ".join(parts)), found


def _picture(
    image: ImageRef,
    shown: Image | None = None,
    difference: Image | None = None,
    *,
    enlarged: bool = False,
    note: str = "",
) -> Picture:
    size = f"{image.width} × {image.height}"
    return Picture(path=image.path, size=size, tile=shown, difference=difference, enlarged=enlarged, note=note)


def _percent(share: float) -> str:
    """Return a share in percent; only nothing is 0 %, and only everything is 100 %."""
    if share in {0.0, 1.0}:
        return f"{100 * share:.0f} %"
    return f"{min(99.9, max(0.1, 100 * share)):.1f} %"


class _Loader:
    """Loads images and masks, and reports each file that cannot be shown once."""

    def __init__(self, asset_root: Path, faults: FaultCollector) -> None:
        self._root = asset_root
        self._store = ImageStore(asset_root, max_bytes=0)  # FULL's images are held anyway, all others shown once
        self._folder = AssetFolder(asset_root)
        self._faults = faults
        self._at = Context(gate=faults.gate, fix=FIX)
        self._wrong: dict[str, str] = {}

    def load(self, image: ImageRef) -> Image | str:
        """Return an image as RGB, or why it cannot be shown."""
        if image.path in self._wrong:
            return self._wrong[image.path]
        try:
            loaded = self._store.load(image)
        except Refusal as refusal:
            # The store speaks to a run, whose gates have seen the image whole.
            fault = replace(refusal.faults[0], gate=self._faults.gate, fix=FIX, exit_code=ExitCode.CONTRACT)
            self._faults.add(fault)
            return self._note(image.path, fault.found)
        if (digest := sha256_file(self._root / image.path)) != image.sha256:
            found, expected = f"another image: sha256 {digest}", f"sha256 {image.sha256}, as the row names it"
            self._faults.add(self._at.at(self._root / image.path).fault(found=found, expected=expected))
            return self._note(image.path, "another image than the row names")
        return loaded

    def evidence(self, view: SampledView, image: ImageRef) -> tuple[npt.NDArray[np.bool_] | None, str]:
        """Return where the evidence is in an image, bool[height, width], and why it cannot be shown, if so.

        An image without evidence has ``None`` and an empty text.
        """
        boxes = [(box.x0, box.y0, box.x1, box.y1) for box in view.boxes if box.image_index == image.image_index]
        mask = next((mask for mask in view.masks if mask.image_index == image.image_index), None)
        if mask is None:
            return (box_mask(boxes, width=image.width, height=image.height) if boxes else None), ""
        if mask.path in self._wrong:
            return None, self._wrong[mask.path]
        path, at = self._root / mask.path, self._at.at(self._root / mask.path)
        try:
            self._folder.size(mask.path, at)
            return mask_pixels(path, width=image.width, height=image.height), ""
        except Refusal as refusal:
            fault = refusal.faults[0]
        except Exception as error:  # noqa: BLE001 - a damaged image makes Pillow raise anything
            fault = at.fault(found=f"not readable as a mask: {error}", expected="the mask that the row names")
        self._faults.add(fault)
        return None, self._note(mask.path, f"its mask {fault.found}")

    def _note(self, path: str, why: str) -> str:
        self._wrong[path] = f"cannot be shown: {why}"
        return self._wrong[path]
