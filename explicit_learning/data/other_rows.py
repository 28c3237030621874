"""Evaluation rows that are not a dataset's own: in order by themselves, and never trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.data.asset_paths import AssetFolder
from explicit_learning.data.assets import check_assets
from explicit_learning.data.dataset import check_dataset
from explicit_learning.data.dataset_manifest import Asset
from explicit_learning.data.group_rules import check_leakage, check_slot_groups
from explicit_learning.data.pixel_rules import check_pixels
from explicit_learning.data.preflight import asked_slot
from explicit_learning.data.reading import load_slot_rows
from explicit_learning.errors import Refusal
from explicit_learning.errors.collector import FaultCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from explicit_learning.data.group_rules import Located
    from explicit_learning.data.preflight import Asked
    from explicit_learning.data.rows import SlotRow
    from explicit_learning.errors import Fault

__all__ = ["other_rows_faults"]

GATE = "evaluation"


def other_rows_faults(
    rows: Path,
    *,
    asset_root: Path,
    trained: Path,
    trained_root: Path,
    envelope: Callable[[Sequence[Asked]], Iterable[Fault]],
) -> list[Fault]:
    """Return everything that is wrong with a file of evaluation rows beside the dataset that was trained on.

    Looked at are the rows by themselves, their lengths in tokens, the bytes of their images, and whether a base item, a
    group, an image or its pixels are in a training row.

    Args:
        rows: The file.
        asset_root: Where its images lie.
        trained: The manifest of the dataset that was trained on.
        trained_root: Where that one's images lie.
        envelope: Returns a fault for every row that does not fit the plan's limits on tokens.
    """
    faults = FaultCollector(GATE)
    read = load_slot_rows(rows, faults, split="evaluation")
    check_slot_groups(read.rows, faults, is_whole=read.is_whole)
    if read.is_whole and not read.rows:
        fix = "name a file with rows, such as evaluation.jsonl of a dataset"
        faults.report(file=str(rows), found="no row", expected="at least one group of evaluation rows", fix=fix)
    if not asset_root.is_dir():
        # Otherwise every image of every row would be reported, for one cause.
        found = "a file" if asset_root.exists() else "no such folder"
        fix = "name the folder that the rows' image paths start at: --assets DIR"
        faults.report(file=str(asset_root), pointer="--assets", found=found, expected="a folder of images", fix=fix)
    if not faults.faults():
        faults.extend(envelope([asked_slot(located) for located in read.rows]))
    if faults.faults():
        return list(faults.faults())
    dataset = check_dataset(trained, asset_root=trained_root, images=False)
    check_leakage([*dataset.located_slots, *dataset.located_sft], read.rows, faults)
    assets = list(_assets(read.rows, asset_root, faults))
    shown = check_assets(asset_root, assets, str(rows), faults)
    if dataset.manifest is not None:
        shown |= check_assets(trained_root, dataset.manifest.images, str(trained), faults)
    check_pixels(dataset.located_slots, dataset.located_sft, read.rows, shown, faults)
    return list(faults.faults())


def _assets(rows: Iterable[Located[SlotRow]], root: Path, faults: FaultCollector) -> Iterable[Asset]:
    """Yield the images that rows name, with the sizes of their files; a row is all that lists them."""
    folder, seen = AssetFolder(root), set()
    for located in rows:
        for field, view in (("full_view", located.row.full_view), ("selected_view", located.row.selected_view)):
            for position, image in enumerate(view.images):
                if image in seen:
                    continue
                seen.add(image)
                at = faults.context.at(located.where)
                try:
                    size = folder.size(image.path, at, f"/{field}/images/{position}/path")
                except Refusal as refusal:
                    faults.extend(refusal.faults)
                    continue
                yield Asset(path=image.path, sha256=image.sha256, bytes=size, width=image.width, height=image.height)
