"""From a draft's ``data`` to the files that a plan names.

A draft names a dataset manifest, or asks for the embedded digits. Which of the manifest's files an arm trains on
follows from the arm, so that a wrong path cannot make an RL arm train on SFT rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.dataset import check_dataset, evaluation_file, training_file
from explicit_learning.data.dataset_manifest import load_dataset_manifest
from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.os_errors import write_fault
from explicit_learning.inputs.data import rows_for

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.arms import Arm
    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.data.dataset_manifest import DatasetManifest, RowsFile

__all__ = ["DraftData", "resolve_data", "write_digits"]

CONTEXT = Context(gate="data")
OUTPUT = Context(gate="output", exit_code=ExitCode.OUTPUT, fix="choose another folder (--out), or remove this one")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftData:
    """The data that a draft stands for.

    Attributes:
        checked: The rows that were read; nothing is wrong with them.
        manifest: The dataset manifest.
        training: The manifest's file of rows that the arm trains on.
        evaluation: Its file of evaluation rows.
    """

    checked: CheckedDataset
    manifest: DatasetManifest
    training: RowsFile
    evaluation: RowsFile

    def path(self, rows: RowsFile) -> Path:
        """Return where a rows file lies."""
        return self.manifest.path.parent / rows.path


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
    """Refuse a data set that was made with another seed or other options."""
    made = load_dataset_manifest(manifest).generator
    if (made.get("seed"), made.get("options")) == (seed, options):
        return
    raise OUTPUT.refusal(
        file=manifest.parent,
        found=f"another data set, made with {found_text({key: made.get(key) for key in ('seed', 'options')})}",
        expected=f"the one of seed {seed} and {found_text(options)}, or nothing",
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
    training, evaluation = training_file(checked, arm), evaluation_file(manifest)
    if training is None or evaluation is None:
        raise CONTEXT.refusal(
            file=file,
            pointer="/data",
            found=f"{manifest.path} lists {', '.join(f'{entry.path} ({entry.kind})' for entry in manifest.files)}",
            expected=f"a file with {rows_for(arm) if training is None else 'evaluation rows'}, for the arm {arm.name}",
            fix="add the file to the data set and make its manifest again, or name another data set",
        )
    return DraftData(checked=checked, manifest=manifest, training=training, evaluation=evaluation)
