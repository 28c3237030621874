"""Checkpoint folders: complete or absent.

The trainer writes a checkpoint file by file, and a kill may strike at any of them. A folder counts only once it holds
``complete.json``, which is written last, after every other file is on the disk, and lists them all by size and hash. A
folder without it is half-written: it is moved aside and reported, never resumed from. A folder whose mark and files
disagree was damaged later, which no kill explains: that is refused by name, because silently going back to an older
checkpoint would hide it.

A checkpoint also fixes where each rank's ledger and trace stood. Ranks write that as ``accounting/rank-R.json`` into
the folder; the mark repeats it for all ranks.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.accounting.frontier import RankFrontiers
from explicit_learning.errors import Fault, Refusal, found_text
from explicit_learning.files.atomic import TEMPORARY_PREFIX, fsync_file, fsync_folder, write_json
from explicit_learning.files.hashing import hash_files
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json
from explicit_learning.plan.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from explicit_learning.plan.typed_plan import Plan

__all__ = [
    "COMPLETE_MARK",
    "CheckpointMark",
    "checkpoint_name",
    "complete_checkpoints",
    "newest_complete",
    "read_mark",
    "rotate_checkpoints",
    "seal_checkpoint",
    "set_aside_folder",
    "set_aside_incomplete",
    "step_of",
    "verify_checkpoint",
    "write_rank_frontiers",
]

GATE = "checkpoint"
COMPLETE_MARK = "complete.json"
SET_ASIDE = "set-aside"
SCHEMA_VERSION = 1
NAME = re.compile(r"checkpoint-([1-9][0-9]*)")
RESTORE = "restore the folder from a copy, or remove it to resume from an older checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMark:
    """What ``complete.json`` says.

    Attributes:
        step: Optimizer steps done.
        run_id: The run.
        world_size: Number of ranks.
        frozen_config_sha256: The plan's own hash.
        run_manifest_sha256: Hash of the run manifest's frozen part.
        frontiers: Accounting frontiers by rank; empty in SFT arms.
        files: Size in bytes and SHA-256 of every other file, by relative POSIX path.
    """

    step: int
    run_id: str
    world_size: int
    frozen_config_sha256: str
    run_manifest_sha256: str
    frontiers: tuple[RankFrontiers, ...]
    files: dict[str, tuple[int, str]]


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of the checkpoint after a step (the trainer's own naming)."""
    return f"checkpoint-{step}"


def step_of(name: str) -> int | None:
    """Return the step of a checkpoint folder's name, or ``None`` if it is no such name."""
    match = NAME.fullmatch(name)
    return int(match[1]) if match else None


def write_rank_frontiers(folder: Path, frontiers: RankFrontiers) -> None:
    """Write one rank's frontiers into a checkpoint's folder; every rank of an RL arm does, before rank 0 seals it.

    Raises:
        OSError: If the file cannot be written.
    """
    target = folder / "accounting"
    target.mkdir(exist_ok=True)
    write_json(target / f"rank-{frontiers.rank}.json", frontiers.to_json())


def seal_checkpoint(folder: Path, plan: Plan, *, step: int, run_manifest_sha256: str) -> CheckpointMark:
    """Make a checkpoint complete: flush and hash all its files, then write the mark. Rank 0 does, after all have saved.

    Args:
        folder: The checkpoint's folder, in the run directory.
        plan: The plan.
        step: Optimizer steps done.
        run_manifest_sha256: Hash of the run manifest's frozen part.

    Raises:
        Refusal: If a rank's frontiers are missing, or its ledger and trace do not stand at the same completion.
        OSError: If a file cannot be read or flushed; the checkpoint is then not complete.
    """
    ranks = range(plan.hardware.world_size if plan.samples else 0)
    frontiers = tuple(_read_rank_frontiers(folder / "accounting" / f"rank-{rank}.json", rank) for rank in ranks)
    (folder / COMPLETE_MARK).unlink(missing_ok=True)
    paths = _flush(folder)
    hashes = hash_files(paths)
    mark = CheckpointMark(
        step=step,
        run_id=plan.run_id,
        world_size=plan.hardware.world_size,
        frozen_config_sha256=plan.frozen_config_sha256,
        run_manifest_sha256=run_manifest_sha256,
        frontiers=frontiers,
        files={path.relative_to(folder).as_posix(): (path.stat().st_size, hashes[path]) for path in paths},
    )
    fsync_folder(folder.parent)
    write_json(folder / COMPLETE_MARK, _mark_document(mark))
    return mark


def read_mark(folder: Path) -> CheckpointMark:
    """Return a checkpoint's mark.

    Raises:
        Refusal: If there is none, or it breaks its schema.
    """
    path = folder / COMPLETE_MARK
    document = load_json(path, gate=GATE)
    if faults := validate(document, "checkpoint-mark", gate=GATE, file=str(path)):
        raise Refusal(faults)
    return CheckpointMark(
        step=document["step"],
        run_id=document["run_id"],
        world_size=document["world_size"],
        frozen_config_sha256=document["frozen_config_sha256"],
        run_manifest_sha256=document["run_manifest_sha256"],
        frontiers=tuple(map(RankFrontiers.from_json, document["frontiers"])),
        files={name: (entry["bytes"], entry["sha256"]) for name, entry in document["files"].items()},
    )


def complete_checkpoints(run: Path) -> list[str]:
    """Return the names of a run's complete checkpoints, by step."""
    return [name for name in _checkpoints(run) if (run / name / COMPLETE_MARK).is_file()]


def newest_complete(run: Path) -> str | None:
    """Return the name of a run's newest complete checkpoint, or ``None``. Its files are `verify_checkpoint`'s."""
    return next(reversed(complete_checkpoints(run)), None)


def verify_checkpoint(folder: Path, plan: Plan, *, run_manifest_sha256: str) -> CheckpointMark:
    """Prove that a complete checkpoint belongs to a run and is as it was sealed; return its mark.

    Raises:
        Refusal: With everything that is wrong: another plan, run or number of ranks; a missing, extra or changed file;
            a frontier that is not this step's.
        OSError: If a file cannot be read.
    """
    mark = read_mark(folder)
    faults = [
        *_identity_faults(folder, mark, plan, run_manifest_sha256),
        *_file_faults(folder, mark),
        *_frontier_faults(folder, mark, plan),
    ]
    if faults:
        raise Refusal(faults)
    return mark


def set_aside_incomplete(run: Path) -> list[str]:
    """Move half-written checkpoints into ``set-aside/``, and return where they are, relative to the run directory.

    Raises:
        OSError: If a folder cannot be moved.
    """
    complete = set(complete_checkpoints(run))
    return [set_aside_folder(run, name) for name in _checkpoints(run) if name not in complete]


def set_aside_folder(run: Path, name: str) -> str:
    """Move a folder of a run into ``set-aside/`` under a free name, and return its new relative path.

    Raises:
        OSError: If it cannot be moved.
    """
    target = run / SET_ASIDE
    target.mkdir(exist_ok=True)
    number = 1 + sum(1 for _ in target.glob(f"{name}.*"))
    (run / name).rename(target / f"{name}.{number:04d}")
    fsync_folder(target)
    fsync_folder(run)
    return f"{SET_ASIDE}/{name}.{number:04d}"


def rotate_checkpoints(run: Path, *, keep: int, protected: Iterable[str] = ()) -> list[str]:
    """Remove the oldest complete checkpoints beyond a number and return their names. Call it after sealing a new one.

    A folder is renamed before it is removed, so that a kill in between leaves no half checkpoint under its name.

    Args:
        run: The run directory.
        keep: How many to keep, at least 1: the newest complete checkpoint is never removed.
        protected: Names that stay, and do not count.

    Raises:
        ValueError: If ``keep`` is below 1.
        OSError: If a folder cannot be removed.
    """
    if keep < 1:
        raise ValueError("the newest complete checkpoint is never removed")
    stay = set(protected)
    surplus = [name for name in complete_checkpoints(run) if name not in stay][:-keep]
    for name in surplus:
        doomed = run / f"{TEMPORARY_PREFIX}removed-{name}"
        shutil.rmtree(doomed, ignore_errors=True)
        (run / name).rename(doomed)
        fsync_folder(run)
        shutil.rmtree(doomed)
    return surplus


def _checkpoints(run: Path) -> list[str]:
    names = [path.name for path in run.iterdir() if path.is_dir() and step_of(path.name) is not None]
    return sorted(names, key=lambda name: step_of(name) or 0)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / COMPLETE_MARK)


def _flush(folder: Path) -> list[Path]:
    """Flush all files and folders to the disk; return the files."""
    paths = _files(folder)
    for path in paths:
        fsync_file(path)
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            fsync_folder(path)
    return paths


def _mark_document(mark: CheckpointMark) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "step": mark.step,
        "run_id": mark.run_id,
        "world_size": mark.world_size,
        "frozen_config_sha256": mark.frozen_config_sha256,
        "run_manifest_sha256": mark.run_manifest_sha256,
        "frontiers": [frontiers.to_json() for frontiers in mark.frontiers],
        "files": {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in mark.files.items()},
    }


def _read_rank_frontiers(path: Path, rank: int) -> RankFrontiers:
    frontiers = RankFrontiers.from_json(load_json(path, gate=GATE))
    ledger, trace = frontiers.ledger, frontiers.trace
    if frontiers.rank != rank or (ledger.rows, ledger.tokens) != (trace.rows, trace.tokens):
        found = f"rank {frontiers.rank}, ledger at row {ledger.rows:,} and trace at row {trace.rows:,}"
        fix = "append to both before a checkpoint: report this as a defect of the trainer"
        raise Refusal(
            Fault(gate=GATE, file=str(path), found=found, expected=f"rank {rank}, both at the same row", fix=fix)
        )
    return frontiers


def _identity_faults(folder: Path, mark: CheckpointMark, plan: Plan, run_manifest_sha256: str) -> Iterator[Fault]:
    expected = {
        "step": step_of(folder.name),
        "run_id": plan.run_id,
        "world_size": plan.hardware.world_size,
        "frozen_config_sha256": plan.frozen_config_sha256,
        "run_manifest_sha256": run_manifest_sha256,
    }
    for name, value in expected.items():
        if (found := getattr(mark, name)) != value:
            yield Fault(
                gate=GATE,
                file=str(folder / COMPLETE_MARK),
                pointer=f"/{name}",
                found=found_text(found),
                expected=found_text(value),
                fix="this checkpoint is another run's: remove it, or resume that run",
            )


def _frontier_faults(folder: Path, mark: CheckpointMark, plan: Plan) -> Iterator[Fault]:
    """Compare the accounting's position with the step: an older frontier would silently sample completions again."""
    if not plan.samples:
        return
    expected = Geometry.of(plan).rank_completions(mark.step)
    if [part.rank for part in mark.frontiers] != list(range(mark.world_size)):
        found = f"frontiers of ranks {[part.rank for part in mark.frontiers]}"
        yield _frontier_fault(folder, "/frontiers", found, f"of ranks 0 to {mark.world_size - 1}")
    for part in mark.frontiers:
        for kind, frontier in (("ledger", part.ledger), ("trace", part.trace)):
            if frontier.rows != expected:
                pointer = f"/frontiers/{part.rank}/{kind}/rows"
                found = f"{frontier.rows:,} completions"
                yield _frontier_fault(folder, pointer, found, f"{expected:,} on a rank after step {mark.step}")


def _frontier_fault(folder: Path, pointer: str, found: str, expected: str) -> Fault:
    file = str(folder / COMPLETE_MARK)
    return Fault(gate=GATE, file=file, pointer=pointer, found=found, expected=expected, fix=RESTORE)


def _file_faults(folder: Path, mark: CheckpointMark) -> Iterator[Fault]:
    present = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    whole = {}
    for name in sorted(mark.files.keys() | present.keys()):
        file = str(folder / name)
        if name not in mark.files:
            fix = "remove the file: the checkpoint was sealed without it"
            yield Fault(gate=GATE, file=file, found="a file that the mark does not list", expected="no file", fix=fix)
        elif name not in present:
            expected = f"a file of {mark.files[name][0]:,} bytes"
            yield Fault(gate=GATE, file=file, found="no such file", expected=expected, fix=RESTORE)
        elif (size := present[name].stat().st_size) != mark.files[name][0]:
            expected = f"{mark.files[name][0]:,} bytes"
            yield Fault(gate=GATE, file=file, found=f"{size:,} bytes", expected=expected, fix=RESTORE)
        else:
            whole[name] = present[name]
    hashes = hash_files(whole.values())
    for name, path in whole.items():
        if hashes[path] != mark.files[name][1]:
            found, expected = f"SHA-256 {hashes[path]}", f"SHA-256 {mark.files[name][1]}"
            yield Fault(gate=GATE, file=str(path), found=found, expected=expected, fix=RESTORE)
