"""The gate on data: the dataset is whole, it is the one that was frozen, and the arm trains on its own rows.

A plan's paths are checked against the manifest, not only against their hashes: a plan that names another of the
dataset's files, with that file's right hash, would train on the wrong rows without anything being damaged.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from explicit_learning.data.dataset import check_dataset, evaluation_file, training_file
from explicit_learning.data.dataset_manifest import load_dataset_manifest
from explicit_learning.data.slots import slot_manifest_sha256
from explicit_learning.errors import Fault, Refusal
from explicit_learning.files.hashing import hash_files, sha256_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.arms import Arm
    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.data.dataset_manifest import RowsFile
    from explicit_learning.plan.typed_plan import Data, HashedFile

__all__ = ["check_data", "image_tokens_per_row", "is_as_frozen"]

GATE = "data"
# Side of the square of pixels behind one image token: patches of 16 pixels, merged 2 by 2 (Qwen3.5's vision tower).
TOKEN_SIDE_PIXELS = 32


def check_data(data: Data, *, arm: Arm | None, base: Path, file: str) -> tuple[list[Fault], CheckedDataset]:
    """Return what is wrong with the data that a plan names, and what was read.

    Args:
        data: The plan's group.
        arm: The plan's arm; ``None`` where that is wrong itself, and the training file cannot be judged.
        base: Folder that the plan's paths start at.
        file: The plan, for faults about its own hashes.
    """
    checked = check_dataset(base / data.dataset_manifest.path, asset_root=base / data.asset_root, gate=GATE)
    faults = list(checked.faults)
    if checked.manifest is not None:
        faults += _identity_faults(data, checked, base, file)
        faults += _path_faults(data, checked, arm, base, file)
    return faults, checked


def is_as_frozen(data: Data, *, base: Path) -> bool:
    """Return whether every byte of the dataset is the one that was frozen, by hashes alone.

    What was frozen was checked then, row by row: for a plan that is refused anyway this answers in a fraction of the
    time. Everything else (a missing file, say) is ``False`` and left to `check_data`, which explains it.
    """
    try:
        manifest = load_dataset_manifest(base / data.dataset_manifest.path, gate=GATE)
        if manifest.sha256 != data.dataset_manifest.sha256:
            return False
        listed = {manifest.path.parent / entry.path: entry.sha256 for entry in manifest.files}
        listed |= {base / data.asset_root / image.path: image.sha256 for image in manifest.images}
        kinds = {(manifest.path.parent / entry.path).resolve(): entry.kind for entry in manifest.files}
        if kinds.get((base / data.evaluation_manifest.path).resolve()) != "evaluation":
            return False
        if kinds.get((base / data.dataset.path).resolve()) not in {"slots", "sft"}:
            return False
        listed |= {base / named.path: named.sha256 for named in (data.dataset, data.evaluation_manifest)}
        return hash_files(listed) == listed
    except (OSError, Refusal):
        return False


def _path_faults(data: Data, checked: CheckedDataset, arm: Arm | None, base: Path, file: str) -> Iterator[Fault]:
    """Compare the files that a plan names with those that the manifest lists for its arm and for evaluation."""
    if checked.manifest is None:
        return
    wanted: list[tuple[str, HashedFile, RowsFile | None, str]] = []
    if arm is not None:
        rows = f"SFT rows of kind {arm.sft_rows}" if arm.is_sft else "slots"
        wanted.append(("dataset", data.dataset, training_file(checked, arm), f"{rows}, for the arm {arm.name}"))
    held_out = evaluation_file(checked.manifest)
    wanted.append(("evaluation_manifest", data.evaluation_manifest, held_out, "evaluation rows"))
    folder = checked.manifest.path.parent
    for name, frozen, entry, rows in wanted:
        named = (base / frozen.path).resolve()
        if entry is not None and (folder / entry.path).resolve() == named:
            continue
        listed = next((item for item in checked.manifest.files if (folder / item.path).resolve() == named), None)
        kind = listed and (checked.record_kinds.get(listed.path) or listed.kind)
        found = f"of kind {kind}" if kind else "a file that the dataset manifest does not list"
        yield Fault(
            gate=GATE,
            file=file,
            pointer=f"/data/{name}/path",
            found=f"{frozen.path}, {found}",
            expected=f"{entry.path if entry else 'a file'} with {rows}",
            fix="name that file, or freeze the draft again",
        )


def _identity_faults(data: Data, checked: CheckedDataset, base: Path, file: str) -> Iterator[Fault]:
    """Compare what was read with what was frozen; rows that were refused already change the slots' identity too."""
    manifest = checked.manifest
    found = {"/data/dataset_manifest/sha256": (manifest and manifest.sha256, data.dataset_manifest.sha256)}
    for name, frozen in (("dataset", data.dataset), ("evaluation_manifest", data.evaluation_manifest)):
        path = base / frozen.path
        if path.is_file():
            found[f"/data/{name}/sha256"] = (sha256_file(path), frozen.sha256)
        else:
            yield Fault(
                gate=GATE,
                file=file,
                pointer=f"/data/{name}/path",
                found=f"{path}: no such file",
                expected="the file that was frozen",
                fix="restore the file, or freeze the draft again",
            )
    if data.slot_manifest_sha256 is not None and not checked.faults:
        found["/data/slot_manifest_sha256"] = (slot_manifest_sha256(checked.slots), data.slot_manifest_sha256)
    for pointer, (measured, frozen_hash) in found.items():
        if measured != frozen_hash:
            yield Fault(
                gate=GATE,
                file=file,
                pointer=pointer,
                found=f"the files hash to {measured}",
                expected=frozen_hash,
                fix="restore the data that was frozen, or freeze the draft again",
            )


def image_tokens_per_row(checked: CheckedDataset) -> int:
    """Return the most image tokens in any row, from image sizes alone; never less than the real number.

    A processor rounds each side to a multiple of the token's side and only ever shrinks large images, so that rounding
    up bounds it.
    """
    rows = [
        *(
            view.images
            for slot in (*checked.slots, *checked.evaluation)
            for view in (slot.full_view, slot.selected_view)
        ),
        *(row.images for row in checked.sft),
    ]
    return max(
        (
            sum(
                math.ceil(image.width / TOKEN_SIDE_PIXELS) * math.ceil(image.height / TOKEN_SIDE_PIXELS)
                for image in images
            )
            for images in rows
        ),
        default=0,
    )
