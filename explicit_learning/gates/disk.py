"""Will the run fit on the disk?

A disk that fills up in the middle of a checkpoint costs the hours since the last one, so the need of the whole run is
estimated from the plan before anything starts. The estimate is an upper bound, less what the run folder already holds
(a resumed run).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from explicit_learning.errors import Context, ExitCode, Fault

__all__ = [
    "DiskNeed",
    "check_disk",
    "disk_size",
    "estimate_run_bytes",
    "existing_ancestor",
    "folder_bytes",
    "free_bytes",
    "missing_bytes",
]

CONTEXT = Context(gate="disk", exit_code=ExitCode.IO)
MIB = 2**20
PLAN_LESS = "plan fewer checkpoints"
# Float32, the widest that adapters are kept in; AdamW keeps two moments of the parameters' shape.
WEIGHT_BYTES = 4
MOMENTS = 2
# RNG state of a rank (Python, NumPy, torch and one CUDA generator: under 32 KiB) with its audit record.
RANK_BYTES = 64 * 1024
# Scheduler, trainer state with its log history, adapter configuration, model card, frontier, complete mark.
CHECKPOINT_FIXED_BYTES = 4 * MIB
# A sampled token in a trace row: its id in decimal with a comma, its text, and the parsed copies of that text.
TOKEN_BYTES = 32
# The rest of a trace row with its ledger row: ids, hashes, reward components.
COMPLETION_BYTES = 4096
# Manifests, events, metrics, logs, TensorBoard.
RECORDS_BYTES = 16 * MIB
STEP_BYTES = 4096
# Files of a checkpoint beside those of its ranks, and of the rest of the run.
CHECKPOINT_FILES = 32
FILES_PER_RANK = 8
RUN_FILES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNeed:
    """What a whole run takes on the disk.

    Attributes:
        needed_bytes: Most bytes at any one time.
        files: Most files and folders at any one time.
    """

    needed_bytes: int
    files: int


def estimate_run_bytes(
    *,
    trainable_parameters: int,
    checkpoints_kept: int,
    max_steps: int,
    world_size: int,
    reference_adapter: bool,
    processor_bytes: int,
    completions: int = 0,
    completion_tokens: int = 0,
) -> DiskNeed:
    """Estimate the disk space of a run, from above.

    ``checkpoint = 4 P (adapter) + 8 P (two AdamW moments) + 4 P (reference adapter) + processor + ranks + fixed``, with
    one checkpoint more than are kept, because the oldest goes only after the newest is complete. Added are the final
    adapter, the ledger and trace, and a tenth of everything for the file system's blocks.

    Args:
        trainable_parameters: P, the adapter's parameters.
        checkpoints_kept: Checkpoints that rotation leaves (a smoke run's checkpoint-5 counts as one more).
        max_steps: Planned optimizer steps.
        world_size: Ranks.
        reference_adapter: Whether checkpoints also hold the frozen reference (TRL keeps one when beta is not 0).
        processor_bytes: Tokenizer and processor files, which Trainer copies into each checkpoint.
        completions: Sampled completions of the whole run over all ranks; 0 for SFT.
        completion_tokens: Most tokens in one completion.
    """
    adapter = trainable_parameters * WEIGHT_BYTES
    checkpoint = adapter * (1 + MOMENTS + reference_adapter)
    checkpoint += processor_bytes + CHECKPOINT_FIXED_BYTES + world_size * RANK_BYTES
    total = checkpoint * (checkpoints_kept + 1) + adapter + processor_bytes
    total += completions * (COMPLETION_BYTES + completion_tokens * TOKEN_BYTES)
    total += RECORDS_BYTES + max_steps * STEP_BYTES
    per_checkpoint = CHECKPOINT_FILES + FILES_PER_RANK * world_size
    files = (checkpoints_kept + 1) * per_checkpoint + RUN_FILES + FILES_PER_RANK * world_size
    return DiskNeed(needed_bytes=total + total // 10, files=files)


def check_disk(folder: Path, need: DiskNeed, *, what: str = "the planned run", less: str = PLAN_LESS) -> list[Fault]:
    """Compare the free space where a run folder is or will be with the run's need.

    File systems that do not count inodes (btrfs, some network ones) report a total of none; their inodes are not
    checked. Space that is reserved for root does not count as free. A path on which no folder can be made is reported
    by the output gate, and not here again.

    Args:
        folder: The folder, which may be missing.
        need: What it takes.
        what: What takes it, for the faults.
        less: What would take less, for the advice.

    Returns:
        Faults with exit code 74: too few bytes, too few inodes, or a file system that does not report them.
    """
    context = CONTEXT.at(folder)
    try:
        place = existing_ancestor(folder)
    except OSError:
        return []
    try:
        status, free = os.statvfs(place), free_bytes(place)
        needed = missing_bytes(folder, need)
        _, present_files = folder_bytes(folder)
    except OSError as error:
        found, expected = f"free space cannot be measured: {error.strerror}", "a file system that reports free space"
        fix = "repair the file system, or choose a folder on another disk (--out)"
        return [context.fault(found=found, expected=expected, fix=fix)]
    faults = []
    if free < needed:
        fix = f"free some space, choose a folder on another disk (--out), or {less}"
        expected = f"at least {disk_size(needed)} free for {what}"
        faults.append(context.fault(found=f"{disk_size(free)} free", expected=expected, fix=fix))
    files = max(0, need.files - present_files)
    if status.f_files and status.f_favail < files:
        fix = "remove unneeded files, or choose a folder on another disk (--out)"
        found, expected = f"{status.f_favail} free inodes", f"at least {files} free inodes"
        faults.append(context.fault(found=found, expected=expected, fix=fix))
    return faults


def existing_ancestor(path: Path) -> Path:
    """Return the path itself if it exists, else the nearest folder above it that does; links are followed.

    Raises:
        OSError: If a part of the path is a file, a loop of links, or a folder that cannot be searched.
    """
    absolute = path.absolute()
    for candidate in (absolute, *absolute.parents):
        try:
            candidate.stat()
        except FileNotFoundError:
            continue
        return candidate
    raise FileNotFoundError(path)


def folder_bytes(folder: Path) -> tuple[int, int]:
    """Return the bytes and the number of entries below a folder; nothing where there is none."""
    total = entries = 0
    for parent, folders, files in os.walk(folder):
        entries += len(folders) + len(files)
        for name in files:
            try:
                total += os.lstat(Path(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total, entries


def free_bytes(folder: Path) -> int:
    """Return the free space on a folder's disk; what is reserved for root does not count.

    Raises:
        OSError: If the file system does not report it.
    """
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def missing_bytes(folder: Path, need: DiskNeed) -> int:
    """Return how much of a run's need is not in its folder yet.

    Raises:
        OSError: If the folder cannot be read.
    """
    present, _ = folder_bytes(folder)
    return max(0, need.needed_bytes - present)


def disk_size(size: int) -> str:
    """Return a number of bytes in GiB, or in MiB where it is less than one."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / MIB:.1f} MiB"
