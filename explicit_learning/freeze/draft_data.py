"""From a draft's ``data`` to the files that a plan names.

A draft names a dataset manifest, or asks for the embedded digits. Which of the manifest's files an arm trains on
follows from the arm, so that a wrong path cannot make an RL arm train on SFT rows.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from explicit_learning.data.dataset import check_dataset, evaluation_file, training_file
from explicit_learning.data.dataset_manifest import MANIFEST_NAME, load_dataset_manifest
from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.atomic import TEMPORARY_PREFIX, fsync_folder, require_free
from explicit_learning.files.os_errors import write_fault
from explicit_learning.inputs.data import rows_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.arms import Arm
    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.data.dataset_manifest import DatasetManifest, RowsFile
    from explicit_learning.errors import Fault

__all__ = ["DraftData", "drafted_data", "write_digits"]

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
        home: Folder of the manifest, for the plan: the embedded digits get there once the plan is in order.
    """

    checked: CheckedDataset
    manifest: DatasetManifest
    training: RowsFile
    evaluation: RowsFile
    home: Path

    def path(self, rows: RowsFile) -> Path:
        """Return where a rows file lies."""
        return self.manifest.path.parent / rows.path

    def at_home(self, path: Path) -> Path:
        """Return where a file or folder of the data set will lie."""
        folder = self.manifest.path.parent
        return self.home / path.relative_to(folder) if path.is_relative_to(folder) else path


def write_digits(folder: Path, *, seed: int, size: str) -> Path:
    """Make the embedded dataset unless it is there, and return its manifest.

    Raises:
        Refusal: If the folder holds something else, or cannot be written.
    """
    from explicit_learning.data.digits import SIZES, write_dataset

    manifest = folder / MANIFEST_NAME
    if manifest.is_file():
        _check_same(manifest, seed=seed, options=SIZES[size].options())
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


@contextmanager
def drafted_data(named: dict[str, Any], arm: Arm, *, base: Path, out: Path, file: str) -> Iterator[DraftData]:
    """Yield the data of a plan, checked byte by byte.

    The embedded digits are made beside the plan if they are not there. They get their name when the block ends well,
    and are removed when it does not: a draft that is refused leaves nothing behind.

    Args:
        named: The draft's ``data``.
        arm: The plan's arm.
        base: Folder that the draft's paths start at.
        out: The plan's file; the embedded digits are written beside it.
        file: The draft, for faults.

    Raises:
        Refusal: With everything that is wrong with the dataset, if it has no rows for the arm, or if the embedded
            digits cannot be written.
    """
    if "digits" not in named:
        yield _checked_data((base / named["manifest"]).resolve(), arm, file)
        return
    seed, size = named["digits"].get("seed", 0), named["digits"].get("size", "demo")
    folder = out.resolve().parent / f"digits-{seed}-{size}"
    if (folder / MANIFEST_NAME).is_file():
        yield _checked_data(write_digits(folder, seed=seed, size=size), arm, file)
        return
    hidden = folder.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}-{folder.name}")
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        _require_free(folder)
        write_digits(hidden, seed=seed, size=size)
        yield replace(_checked_data(hidden / MANIFEST_NAME, arm, file), home=folder)
        _give_name(hidden, folder)
    except BaseException as error:
        shutil.rmtree(hidden, ignore_errors=True)
        with suppress(OSError):
            for parent in made:
                parent.rmdir()
        if not isinstance(error, Refusal):
            raise
        raise Refusal(_moved(fault, hidden, folder) for fault in error.faults) from None


def _require_free(folder: Path) -> None:
    try:
        require_free(folder)
    except OSError as error:
        raise Refusal(write_fault(error, folder)) from None


def _give_name(hidden: Path, folder: Path) -> None:
    try:
        try:
            hidden.rename(folder)
        except OSError:
            if not (folder / MANIFEST_NAME).is_file():
                raise
            shutil.rmtree(hidden)  # another process made it meanwhile: same seed, same bytes
        fsync_folder(folder.parent)
    except OSError as error:
        raise Refusal(write_fault(error, folder)) from None


def _moved(fault: Fault, hidden: Path, folder: Path) -> Fault:
    """Return a fault that names the data set by the name that it would have got."""

    def named(text: str) -> str:
        return text.replace(str(hidden), str(folder))

    where = fault.file and named(fault.file)
    return replace(fault, file=where, found=named(fault.found), expected=named(fault.expected))


def _checked_data(path: Path, arm: Arm, file: str) -> DraftData:
    """Return the data that a manifest describes.

    Raises:
        Refusal: With everything that is wrong with it, or if it has no rows for the arm.
    """
    checked = check_dataset(path)
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
    return DraftData(checked=checked, manifest=manifest, training=training, evaluation=evaluation, home=path.parent)
