"""From a draft's two words about data to the files a plan names.

A draft names a dataset manifest, or asks for the embedded digits. Which of the manifest's files an arm trains on
follows from the arm; nobody should be able to train an RL arm on SFT rows by a slip of a path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Refusal
from explicit_learning.files.os_errors import write_fault

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.arms import Arm

__all__ = ["DraftData", "resolve_data", "write_digits"]

GATE = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftData:
    """The data of a plan: absolute paths and identities."""

    dataset: Path
    dataset_sha256: str
    asset_root: Path
    manifest: Path
    manifest_sha256: str
    slot_manifest_sha256: str | None
    evaluation: Path
    evaluation_sha256: str


def write_digits(folder: Path, *, seed: int, size: str) -> Path:
    """Make the embedded dataset unless it is there, and return its manifest.

    Raises:
        Refusal: If the folder holds something else, or cannot be written.
    """
    from explicit_learning.data.digits import SIZES, write_dataset

    manifest = folder / "dataset-manifest.json"
    if manifest.is_file():
        return manifest
    try:
        write_dataset(folder, seed=seed, size=SIZES[size])
    except OSError as error:
        if not manifest.is_file():  # else another process made it meanwhile: same seed, same bytes
            raise Refusal(write_fault(error, folder)) from None
    return manifest


def resolve_data(named: dict[str, Any], arm: Arm, *, base: Path, out: Path, file: str) -> DraftData:
    """Return the data of a plan, checked byte by byte.

    Args:
        named: The draft's ``data``.
        arm: The plan's arm.
        base: Folder that the draft's paths start at.
        out: The plan's file; the embedded digits are written beside it.
        file: The draft, for faults.

    Raises:
        Refusal: With everything that is wrong with the dataset.
    """
    raise NotImplementedError
