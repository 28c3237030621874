"""A plan's data block against the data it names.

A plan names each file by hash, so that it stands for one data set for ever. The gate holds the block to the files; the
data set's own rules are checked on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.data.dataset import check_dataset
from explicit_learning.data.slots import slot_manifest_sha256
from explicit_learning.errors import Fault, found_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.arms import Arm
    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.data.manifest import DatasetManifest, RowsFile
    from explicit_learning.plan.model import Data

__all__ = ["check_plan_data"]

_FREEZE = "restore the data that the plan was frozen with, or freeze the draft again"


def check_plan_data(data: Data, arm: Arm, *, base: Path, file: str, gate: str = "data") -> list[Fault]:
    """Return everything in which a plan's data is not what was frozen, or breaks its own rules.

    Args:
        data: The plan's data block.
        arm: The plan's arm: it decides which kind of rows the plan must name.
        base: The folder that the plan's paths start at.
        file: The plan, for the faults.
        gate: Name of the check, for the faults.
    """
    manifest_path = base / data.dataset_manifest.path
    checked = check_dataset(manifest_path, asset_root=base / data.asset_root, gate=gate)
    faults = list(checked.faults)
    if checked.manifest is not None:
        for pointer, found, expected in _differences(data, arm, base, checked, checked.manifest):
            faults.append(Fault(gate=gate, file=file, pointer=pointer, found=found, expected=expected, fix=_FREEZE))
    return faults


def _differences(
    data: Data, arm: Arm, base: Path, checked: CheckedDataset, manifest: DatasetManifest
) -> Iterator[tuple[str, str, str]]:
    if manifest.sha256 != data.dataset_manifest.sha256:
        yield "/data/dataset_manifest/sha256", data.dataset_manifest.sha256, f"{manifest.sha256}, the manifest's"
    kinds = checked.record_kinds
    training = [
        entry
        for entry in manifest.files
        if (entry.kind == "sft" and kinds.get(entry.path) == arm.sft_rows if arm.is_sft else entry.kind == "slots")
    ]
    evaluation = [entry for entry in manifest.files if entry.kind == "evaluation"]
    wanted = f"SFT rows of kind {arm.sft_rows}" if arm.is_sft else "slots"
    for pointer, named, entries, expected in (
        ("/data/dataset", data.dataset, training, f"the manifest's file of {wanted}"),
        ("/data/evaluation_manifest", data.evaluation_manifest, evaluation, "the manifest's evaluation file"),
    ):
        entry = _entry_at(base / named.path, entries, manifest)
        if entry is None:
            known = ", ".join(entry.path for entry in entries) or "it lists none"
            yield f"{pointer}/path", found_text(named.path), f"{expected} ({known})"
        elif entry.sha256 != named.sha256:
            yield f"{pointer}/sha256", named.sha256, f"{entry.sha256}, as the manifest lists it"
    if not arm.is_sft:
        identity = slot_manifest_sha256(checked.slots)
        if identity != data.slot_manifest_sha256:
            found = found_text(data.slot_manifest_sha256)
            yield "/data/slot_manifest_sha256", found, f"{identity}, the identity of the slots"


def _entry_at(path: Path, entries: list[RowsFile], manifest: DatasetManifest) -> RowsFile | None:
    folder = manifest.path.parent
    return next((entry for entry in entries if (folder / entry.path).resolve() == path.resolve()), None)
