"""A dataset as a whole: what the gate checks, and what ranks read.

The gate looks at every byte once: rows files and images against the manifest, rows against their rules, groups against
each other. A rank that has compared the manifest's hash with the plan's may then read rows without looking at images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from explicit_learning.data.assets import check_assets
from explicit_learning.data.dataset_manifest import DatasetManifest, load_dataset_manifest
from explicit_learning.data.group_rules import (
    check_leakage,
    check_sft_against_slots,
    check_sft_groups,
    check_slot_groups,
)
from explicit_learning.data.pixel_rules import check_pixels, transparency_warnings
from explicit_learning.data.reading import load_sft_rows, load_slot_rows
from explicit_learning.data.references import check_references
from explicit_learning.data.rows import Relation
from explicit_learning.errors import Context, FaultCollector, Refusal, found_text
from explicit_learning.files.git_lfs import LFS_FIX, LFS_POINTER, is_lfs_pointer
from explicit_learning.files.hashing import hash_files
from explicit_learning.files.os_errors import read_fault

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from explicit_learning.arms import Arm
    from explicit_learning.data.dataset_manifest import RowsFile
    from explicit_learning.data.group_rules import Located
    from explicit_learning.data.reading import FileRows
    from explicit_learning.data.rows import SftRow, SlotRow
    from explicit_learning.errors import Fault

__all__ = [
    "CheckedDataset",
    "DatasetManifest",
    "check_dataset",
    "direction_faults",
    "evaluation_file",
    "evidence_faults",
    "load_dataset_manifest",
    "slots_file",
    "training_file",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDataset:
    """What a check found: the typed rows that have the right form, and all faults.

    Attributes:
        manifest: The manifest; ``None`` where it was refused itself.
        located_slots: Rows of the slots file with their lines, in file order, which means nothing.
        located_sft: Rows of the SFT files, of every arm.
        located_evaluation: Rows of the evaluation file.
        record_kinds: The arm of each SFT file with rows, by the file's path in the manifest.
        file_sha256: Hash of each rows file that could be read, by the file's path in the manifest.
        faults: Everything that is wrong; empty for a good dataset.
        warnings: What is odd, and permitted.
    """

    manifest: DatasetManifest | None
    located_slots: tuple[Located[SlotRow], ...] = ()
    located_sft: tuple[Located[SftRow], ...] = ()
    located_evaluation: tuple[Located[SlotRow], ...] = ()
    record_kinds: dict[str, str] = field(default_factory=dict)
    file_sha256: dict[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def slots(self) -> tuple[SlotRow, ...]:
        """The slots alone."""
        return tuple(located.row for located in self.located_slots)

    @property
    def sft(self) -> tuple[SftRow, ...]:
        """The SFT rows alone."""
        return tuple(located.row for located in self.located_sft)

    @property
    def evaluation(self) -> tuple[SlotRow, ...]:
        """The evaluation rows alone."""
        return tuple(located.row for located in self.located_evaluation)


def check_dataset(
    manifest_path: Path, *, asset_root: Path | None = None, images: bool = True, gate: str = "data"
) -> CheckedDataset:
    """Check a dataset, and read it. Never raises for bad data: all of it becomes faults.

    Args:
        manifest_path: The dataset manifest.
        asset_root: Where the images lie; the manifest's own asset root by default.
        images: Whether to look at the bytes of the images, too.
        gate: Name of the check, for the faults.
    """
    try:
        manifest = load_dataset_manifest(manifest_path, gate=gate)
    except Refusal as refusal:
        return CheckedDataset(manifest=None, faults=refusal.faults)
    faults = FaultCollector(gate)
    for entry in manifest.files:
        if is_lfs_pointer(manifest_path.parent / entry.path):
            path = manifest_path.parent / entry.path
            faults.report(file=path, found=LFS_POINTER, expected="a JSON Lines file", fix=LFS_FIX)
    if faults.faults():  # whatever else is wrong may follow from this
        return CheckedDataset(manifest=manifest, faults=tuple(faults.faults()))
    file_sha256 = _check_files(manifest, faults)
    rows = _read_files(manifest, faults)
    check_slot_groups(rows.slots, faults, is_whole=rows.is_whole("slots"))
    check_sft_groups(rows.sft, faults)
    check_sft_against_slots(rows.sft, rows.slots, faults)
    check_slot_groups(rows.evaluation, faults, is_whole=rows.is_whole("evaluation"))
    check_leakage([*rows.slots, *rows.sft], rows.evaluation, faults)
    _check_counts(manifest, rows, faults)
    check_references([*rows.slots, *rows.sft, *rows.evaluation], manifest, faults)
    shown = {}
    if images:
        shown = check_assets(asset_root or manifest.asset_root, manifest.images, str(manifest.path), faults)
        check_pixels(rows.slots, rows.sft, rows.evaluation, shown, faults)
    return CheckedDataset(
        manifest=manifest,
        located_slots=tuple(rows.slots),
        located_sft=tuple(rows.sft),
        located_evaluation=tuple(rows.evaluation),
        record_kinds=rows.record_kinds,
        file_sha256=file_sha256,
        faults=tuple(faults.faults()),
        warnings=tuple(transparency_warnings([*rows.slots, *rows.sft, *rows.evaluation], shown)),
    )


def evidence_faults(checked: CheckedDataset, *, objective: Mapping[str, Any] | None) -> list[Fault]:
    """Return that evidence is missing where a plan's evidence weight is positive; one fault for all groups.

    Args:
        checked: The dataset.
        objective: The plan's objective; ``None`` for SFT arms.
    """
    evi_po = (objective or {}).get("evi_po")
    without = sorted({slot.group_id for slot in checked.slots if not slot.full_view.boxes and not slot.full_view.masks})
    if not evi_po or evi_po["lambda_ev"] <= 0 or not without or checked.manifest is None:
        return []
    return [
        Context(gate="data", file=str(checked.manifest.path)).fault(
            pointer="/full_view/evidence",
            found=f"{len(without):,} groups without evidence, the first {without[0]!r}",
            expected="evidence in every FULL view: objective.evi_po.lambda_ev is positive",
            fix="mark the evidence by boxes or masks, or set lambda_ev to 0",
        )
    ]


def direction_faults(checked: CheckedDataset, *, objective: Mapping[str, Any] | None) -> list[Fault]:
    """Return that no group has an intervened view where a plan's direction weight is positive.

    Args:
        checked: The dataset.
        objective: The plan's objective; ``None`` for SFT arms.
    """
    evi_po = (objective or {}).get("evi_po")
    relations = {slot.relation for slot in checked.slots}
    intervened = relations & {Relation.MISSING, Relation.SUBSTITUTE}
    if not evi_po or evi_po["lambda_dir"] <= 0 or not relations or intervened or checked.manifest is None:
        return []
    return [
        Context(gate="data", file=str(checked.manifest.path)).fault(
            pointer="/relation",
            found=f"{len(checked.slots):,} slots, all {' or '.join(sorted(relations))}",
            expected="MISSING or SUBSTITUTE slots: objective.evi_po.lambda_dir is positive",
            fix="add views whose evidence is removed or replaced, or set lambda_dir to 0",
        )
    ]


def training_file(checked: CheckedDataset, arm: Arm) -> RowsFile | None:
    """Return the file an arm trains on, the slots or the SFT rows of the arm's own kind; ``None`` without one."""
    for entry in checked.manifest.files if checked.manifest else ():
        kind = checked.record_kinds.get(entry.path) if arm.is_sft else entry.kind
        if kind == (arm.sft_rows if arm.is_sft else "slots"):
            return entry
    return None


def evaluation_file(manifest: DatasetManifest) -> RowsFile | None:
    """Return the file of held-out rows; ``None`` without one."""
    return next((entry for entry in manifest.files if entry.kind == "evaluation"), None)


def slots_file(manifest: DatasetManifest) -> RowsFile | None:
    """Return the file of slots; ``None`` without one."""
    return next((entry for entry in manifest.files if entry.kind == "slots"), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """All rows of the right form, how many each file has, and the arm that each SFT file is for.

    A file that holds anything else, too, has no number of rows here, and is of one of the ``partial`` kinds.
    """

    slots: list[Located[SlotRow]] = field(default_factory=list)
    sft: list[Located[SftRow]] = field(default_factory=list)
    evaluation: list[Located[SlotRow]] = field(default_factory=list)
    per_file: list[int | None] = field(default_factory=list)
    partial: set[str] = field(default_factory=set)
    record_kinds: dict[str, str] = field(default_factory=dict)

    def is_whole(self, kind: str) -> bool:
        """Whether these are all rows of the files of a kind."""
        return kind not in self.partial


def _read_files(manifest: DatasetManifest, faults: FaultCollector) -> _Rows:
    rows = _Rows()
    for entry in manifest.files:
        path = manifest.path.parent / entry.path
        read: FileRows[SftRow] | FileRows[SlotRow]
        if entry.kind == "sft":
            read = load_sft_rows(path, faults)
            _check_record_kinds(entry.path, read.rows, rows.record_kinds, faults)
            rows.sft.extend(read.rows)
        elif entry.kind == "slots":
            read = load_slot_rows(path, faults)
            rows.slots.extend(read.rows)
        else:
            read = load_slot_rows(path, faults, split="evaluation")
            rows.evaluation.extend(read.rows)
        rows.per_file.append(len(read.rows) if read.is_whole else None)
        if not read.is_whole:
            rows.partial.add(entry.kind)
    return rows


def _check_record_kinds(name: str, rows: list[Located[SftRow]], known: dict[str, str], faults: FaultCollector) -> None:
    """Report SFT rows for another arm than their file's first one: an arm trains on one file, and on all of it."""
    if not rows:
        return
    kind = rows[0].row.record_kind
    for other, taken in known.items():
        if taken == kind:
            found, fix = f"{kind}, which {other} holds already", "join the two files"
            faults.report(file=rows[0].where, pointer="/record_kind", found=found, expected="one file per arm", fix=fix)
    known[name] = kind
    for located in rows:
        if located.row.record_kind != kind:
            faults.report(
                file=located.where,
                pointer="/record_kind",
                found=f"{located.row.record_kind} in a file of {kind}",
                expected=kind,
                fix="write the rows of each arm into a file of their own",
            )


def _check_files(manifest: DatasetManifest, faults: FaultCollector) -> dict[str, str]:
    """Report rows files that are not the listed bytes, and return each one's hash.

    A missing one is reported when it is read.
    """
    paths = {entry.path: manifest.path.parent / entry.path for entry in manifest.files}
    present = {name: path for name, path in paths.items() if path.is_file()}
    try:
        by_path = hash_files(present.values(), progress_label="hashing rows")
    except OSError as error:
        faults.add(read_fault(error, error.filename, gate=faults.gate, expected="readable rows files"))
        return {}
    hashes = {name: by_path[path] for name, path in present.items()}
    for index, entry in enumerate(manifest.files):
        digest = hashes.get(entry.path, entry.sha256)
        if digest != entry.sha256:
            faults.report(
                file=str(manifest.path),
                pointer=f"/files/{index}/sha256",
                found=f"{found_text(entry.path)} is changed: sha256 {digest}",
                expected=f"sha256 {entry.sha256}, as listed",
                fix="restore the file, or make the manifest again (it is then another dataset)",
            )
        elif entry.path in present and paths[entry.path].stat().st_size != entry.bytes:
            faults.report(
                file=str(manifest.path),
                pointer=f"/files/{index}/bytes",
                found=f"{entry.bytes:,} for {found_text(entry.path)}",
                expected=f"{paths[entry.path].stat().st_size:,}",
                fix="make the manifest again",
            )
    return hashes


def _check_counts(manifest: DatasetManifest, rows: _Rows, faults: FaultCollector) -> None:
    listed = manifest.counts
    counted: list[tuple[str, int, int | None]] = [
        (f"/files/{index}/rows", entry.rows, found)
        for index, (entry, found) in enumerate(zip(manifest.files, rows.per_file, strict=True))
    ]
    if rows.is_whole("slots"):
        groups = len({located.row.group_id for located in rows.slots})
        counted += [("/counts/slots", listed.slots, len(rows.slots)), ("/counts/groups", listed.groups, groups)]
    if rows.is_whole("sft"):
        counted.append(("/counts/sft_rows", listed.sft_rows, len(rows.sft)))
    if rows.is_whole("evaluation"):
        counted.append(("/counts/evaluation_rows", listed.evaluation_rows, len(rows.evaluation)))
    counted.append(("/counts/images", listed.images, len(manifest.images)))
    for pointer, count, found in counted:
        if found is not None and count != found:
            faults.report(
                file=str(manifest.path),
                pointer=pointer,
                found=f"{count}; the files hold {found}",
                expected=str(found),
                fix="fix the rows, or make the manifest again",
            )
