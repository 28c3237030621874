"""From a draft's two words about data to the files a plan names.

A draft names a dataset manifest, or asks for the embedded digits. Which of the manifest's files an arm trains on
follows from the arm; nobody should be able to train an RL arm on SFT rows by a slip of a path.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.dataset import check_dataset, evaluation_file, training_file
from explicit_learning.data.dataset_manifest import load_dataset_manifest
from explicit_learning.data.slots import slot_manifest_sha256
from explicit_learning.errors import ExitCode, Fault, Refusal, found_text
from explicit_learning.files.os_errors import write_fault

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.arms import Arm
    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.data.dataset_manifest import DatasetManifest

__all__ = ["DraftData", "resolve_data", "write_digits"]

GATE = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftData:
    """The data of a plan: absolute paths and identities, and the rows that were read."""

    dataset: Path
    dataset_sha256: str
    asset_root: Path
    manifest: Path
    manifest_sha256: str
    slot_manifest_sha256: str | None
    evaluation: Path
    evaluation_sha256: str
    checked: CheckedDataset


def write_digits(folder: Path, *, seed: int, size: str) -> Path:
    """Make the embedded dataset unless it is there, and return its manifest.

    Raises:
        Refusal: If the folder holds something else, or cannot be written.
    """
    from explicit_learning.data.digits import SIZES, write_dataset

    manifest = folder / "dataset-manifest.json"
    if manifest.is_file():
        _check_same(manifest, seed=seed, options=asdict(SIZES[size]))
        return manifest
    try:
        write_dataset(folder, seed=seed, size=SIZES[size])
    except OSError as error:
        if not manifest.is_file():  # else another process made it meanwhile: same seed, same bytes
            raise Refusal(write_fault(error, folder)) from None
    return manifest


def _check_same(manifest: Path, *, seed: int, options: dict[str, Any]) -> None:
    """Refuse a data set that was made in another way than the one that is asked for."""
    made = load_dataset_manifest(manifest).generator
    if (made.get("seed"), made.get("options")) == (seed, options):
        return
    raise Refusal(
        Fault(
            gate="output",
            file=str(manifest.parent),
            found=f"another data set, made with {found_text({key: made.get(key) for key in ('seed', 'options')})}",
            expected=f"the one of seed {seed} and {found_text(options)}, or nothing",
            fix="choose another folder (--out), or remove this one",
            exit_code=ExitCode.OUTPUT,
        )
    )


def resolve_data(named: dict[str, Any], arm: Arm, *, base: Path, out: Path, file: str) -> DraftData:
    """Return the data of a plan, checked byte by byte.

    Args:
        named: The draft's ``data``.
        arm: The plan's arm.
        base: Folder that the draft's paths start at.
        out: The plan's file; the embedded digits are written beside it.
        file: The draft, for faults.

    Raises:
        Refusal: With everything that is wrong with the dataset, or if it has no rows for the arm.
    """
    if "digits" in named:
        seed, size = named["digits"].get("seed", 0), named["digits"].get("size", "demo")
        path = write_digits(out.resolve().parent / f"digits-{seed}-{size}", seed=seed, size=size)
    else:
        path = base / named["manifest"]
    checked = check_dataset(path.resolve())
    if checked.faults or checked.manifest is None:
        raise Refusal(checked.faults)
    manifest = checked.manifest
    dataset = training_file(checked, arm)
    evaluation = evaluation_file(manifest)
    if dataset is None or evaluation is None:
        raise Refusal(_missing_rows(manifest, arm, file, training=dataset is None))
    return DraftData(
        dataset=manifest.path.parent / dataset.path,
        dataset_sha256=dataset.sha256,
        asset_root=manifest.asset_root.resolve(),
        manifest=manifest.path,
        manifest_sha256=manifest.sha256,
        slot_manifest_sha256=None if arm.is_sft else slot_manifest_sha256(checked.slots),
        evaluation=manifest.path.parent / evaluation.path,
        evaluation_sha256=evaluation.sha256,
        checked=checked,
    )


def _missing_rows(manifest: DatasetManifest, arm: Arm, file: str, *, training: bool) -> Fault:
    wanted = (f"SFT rows of kind {arm.sft_rows}" if arm.is_sft else "slots") if training else "evaluation rows"
    return Fault(
        gate=GATE,
        file=file,
        pointer="/data",
        found=f"{manifest.path} lists {', '.join(f'{entry.path} ({entry.kind})' for entry in manifest.files)}",
        expected=f"a file with {wanted}, for the arm {arm.name}",
        fix="add the file to the dataset and make its manifest anew, or name another dataset",
    )
