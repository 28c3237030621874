"""The mark that makes a checkpoint's folder a checkpoint, and the proof that the folder still is what was marked.

The trainer writes a checkpoint file by file, and a kill may strike at any of them. A folder counts only once it holds
``complete.json``, which is written last, after every other file is on the disk, and lists them all by size and hash. A
folder whose mark and files disagree was damaged later, which no kill explains: that is refused by name, because
silently going back to an older checkpoint would hide it.

A checkpoint also fixes where each rank's ledger and trace stood. Ranks write that as ``accounting/rank-R.json`` into
the folder; the mark repeats it for all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.accounting.frontier import RankFrontiers
from explicit_learning.errors import Context, ExitCode, Fault, Refusal, found_text
from explicit_learning.files.atomic import fsync_file, fsync_folder
from explicit_learning.files.hashing import hash_files
from explicit_learning.files.typed_json import MAYBE_OTHER_VERSION, document, read_document, write_document
from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir.checkpoint_files import unplanned_files
from explicit_learning.rundir.layout import CHECKPOINT_MARK, checkpoint_name, frontiers_file, is_of_file_system, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.plan.typed_plan import Plan

__all__ = [
    "CheckpointMark",
    "MarkedFile",
    "mark_faults",
    "read_mark",
    "seal_checkpoint",
    "verify_checkpoint",
    "write_rank_frontiers",
]

GATE = "checkpoint"
CONTEXT = Context(gate=GATE, fix="restore the folder from a copy, or remove it to resume from an older checkpoint")
SEALING = Context(
    gate=GATE,
    fix="report this as a defect (CONTRIBUTING.md says where): the trainer did not write the checkpoint as planned",
    exit_code=ExitCode.INTERNAL,
)
PLANNED = "a file that training writes into every checkpoint of this plan"
UNPLANNED = "no file but those that training writes into a checkpoint of this plan"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedFile:
    """A file's size and the SHA-256 of its bytes."""

    bytes: int
    sha256: str


@document("checkpoint-mark")
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMark:
    """The content of ``complete.json``.

    Attributes:
        step: Optimizer steps done.
        run_id: The run.
        world_size: Number of ranks.
        frozen_config_sha256: The plan's own hash.
        run_manifest_sha256: Hash of the run manifest's frozen part.
        frontiers: Accounting frontiers by rank; empty in SFT arms.
        files: Every other file, by relative POSIX path.
    """

    schema_version: int = SCHEMA_VERSION
    step: int
    run_id: str
    world_size: int
    frozen_config_sha256: str
    run_manifest_sha256: str
    frontiers: tuple[RankFrontiers, ...]
    files: dict[str, MarkedFile]


def write_rank_frontiers(folder: Path, frontiers: RankFrontiers) -> None:
    """Write one rank's frontiers into a checkpoint's folder; every rank of an RL arm does, before rank 0 seals it.

    Raises:
        Refusal: If they break their schema (exit code 70).
        OSError: If the file cannot be written.
    """
    target = folder / frontiers_file(frontiers.rank)
    target.parent.mkdir(exist_ok=True)
    write_document(target, frontiers, gate=GATE)


def seal_checkpoint(folder: Path, plan: Plan, *, step: int, run_manifest_sha256: str) -> CheckpointMark:
    """Make a checkpoint complete: flush and hash all its files, then write the mark. Rank 0 does, after all have saved.

    Args:
        folder: The checkpoint's folder, in the run directory.
        plan: The plan.
        step: Optimizer steps done.
        run_manifest_sha256: Hash of the run manifest's frozen part.

    Raises:
        Refusal: If the folder has not exactly the files of the plan's checkpoints, or a rank's ledger and trace do not
            stand at the same completion.
        OSError: If a file cannot be read or flushed; the checkpoint is then not complete.
    """
    names = [path.relative_to(folder).as_posix() for path in _files(folder)]
    if faults := [
        SEALING.fault(
            file=folder / name,
            found="a file" if is_there else "no such file",
            expected=UNPLANNED if is_there else PLANNED,
        )
        for name, is_there in unplanned_files(plan, names)
    ]:
        raise Refusal(faults)
    ranks = range(plan.hardware.world_size if plan.samples else 0)
    frontiers = tuple(_read_rank_frontiers(folder / frontiers_file(rank), rank) for rank in ranks)
    (folder / CHECKPOINT_MARK).unlink(missing_ok=True)
    paths = _flush(folder)
    hashes = hash_files(paths)
    mark = CheckpointMark(
        step=step,
        run_id=plan.run_id,
        world_size=plan.hardware.world_size,
        frozen_config_sha256=plan.frozen_config_sha256,
        run_manifest_sha256=run_manifest_sha256,
        frontiers=frontiers,
        files={
            path.relative_to(folder).as_posix(): MarkedFile(bytes=path.stat().st_size, sha256=hashes[path])
            for path in paths
        },
    )
    fsync_folder(folder.parent)
    write_document(folder / CHECKPOINT_MARK, mark, gate=GATE)
    return mark


def read_mark(folder: Path) -> CheckpointMark:
    """Return a checkpoint's mark.

    Raises:
        Refusal: If there is none, or it breaks its schema.
    """
    return read_document(
        folder / CHECKPOINT_MARK, CheckpointMark, gate=GATE, fix=f"{CONTEXT.fix}; {MAYBE_OTHER_VERSION}"
    )


def verify_checkpoint(folder: Path, plan: Plan, *, run_manifest_sha256: str) -> CheckpointMark:
    """Prove that a complete checkpoint belongs to a run and is as it was sealed; return its mark.

    Raises:
        Refusal: With everything that is wrong: another plan, run or number of ranks; a missing, extra or changed file;
            a frontier that is not this step's.
        OSError: If a file cannot be read.
    """
    mark = read_mark(folder)
    context = CONTEXT.at(folder / CHECKPOINT_MARK)
    faults = [
        *mark_faults(mark, plan, folder=folder.name, file=str(context.file), run_manifest_sha256=run_manifest_sha256),
        *_file_faults(folder, mark),
    ]
    if faults:
        raise Refusal(faults)
    return mark


def _files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path != folder / CHECKPOINT_MARK
        and not any(map(is_of_file_system, path.relative_to(folder).parts))
    )


def _flush(folder: Path) -> list[Path]:
    """Flush all files and folders to the disk; return the files."""
    paths = _files(folder)
    for path in paths:
        fsync_file(path)
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            fsync_folder(path)
    return paths


def _read_rank_frontiers(path: Path, rank: int) -> RankFrontiers:
    frontiers = read_document(path, RankFrontiers, gate=GATE)
    ledger, trace = frontiers.ledger, frontiers.trace
    if frontiers.rank != rank or (ledger.rows, ledger.tokens) != (trace.rows, trace.tokens):
        raise CONTEXT.refusal(
            file=path,
            found=f"rank {frontiers.rank}, ledger at row {ledger.rows:,} with {ledger.tokens:,} tokens, "
            f"trace at row {trace.rows:,} with {trace.tokens:,} tokens",
            expected=f"rank {rank}, ledger and trace at the same row with the same tokens",
            fix="report this as a defect (CONTRIBUTING.md says where): the trainer must append to both before it saves",
            exit_code=ExitCode.INTERNAL,
        )
    return frontiers


def mark_faults(
    mark: CheckpointMark, plan: Plan, *, folder: str, file: str, run_manifest_sha256: str
) -> Iterator[Fault]:
    """Yield why a mark is not that of a plan's run at the step that its folder names.

    Args:
        mark: The mark.
        plan: The plan.
        folder: Name of the checkpoint's folder.
        file: The mark's file, for the faults.
        run_manifest_sha256: Hash of the run manifest's frozen part.
    """
    context = CONTEXT.at(file)
    yield from _identity_faults(context, folder, mark, plan, run_manifest_sha256)
    if mark.frozen_config_sha256 == plan.frozen_config_sha256:
        yield from _listed_faults(context, mark, plan)
    yield from _frontier_faults(context, mark, plan)


def _identity_faults(
    context: Context, folder: str, mark: CheckpointMark, plan: Plan, run_manifest_sha256: str
) -> Iterator[Fault]:
    expected = {
        "step": step_of(folder),
        "run_id": plan.run_id,
        "world_size": plan.hardware.world_size,
        "frozen_config_sha256": plan.frozen_config_sha256,
        "run_manifest_sha256": run_manifest_sha256,
    }
    for name, value in expected.items():
        if (found := getattr(mark, name)) != value:
            fix = "remove the folder from this run: it is a checkpoint of another run"
            if name == "step":
                fix = f"rename the folder to {checkpoint_name(mark.step)}: it has been renamed"
            yield context.fault(pointer=f"/{name}", found=found_text(found), expected=found_text(value), fix=fix)


def _listed_faults(context: Context, mark: CheckpointMark, plan: Plan) -> Iterator[Fault]:
    """Compare the list of files with what training writes: a list can be changed together with the files."""
    for name, is_listed in unplanned_files(plan, mark.files):
        yield context.fault(
            pointer=f"/files/{name.replace('~', '~0').replace('/', '~1')}",
            found="listed" if is_listed else "not listed",
            expected=UNPLANNED if is_listed else PLANNED,
        )


def _frontier_faults(context: Context, mark: CheckpointMark, plan: Plan) -> Iterator[Fault]:
    """Compare the accounting's position with the step: an older frontier would silently sample completions again."""
    if not plan.samples:
        return
    rows = Geometry.of(plan).rank_completions(mark.step)
    if (ranks := [part.rank for part in mark.frontiers]) != list(range(mark.world_size)):
        expected = f"frontiers of ranks 0 to {mark.world_size - 1}"
        yield context.fault(pointer="/frontiers", found=f"frontiers of ranks {ranks}", expected=expected)
    for part in mark.frontiers:
        for kind, frontier in (("ledger", part.ledger), ("trace", part.trace)):
            if frontier.rows != rows:
                yield context.fault(
                    pointer=f"/frontiers/{part.rank}/{kind}/rows",
                    found=f"{frontier.rows:,} completions",
                    expected=f"{rows:,} on a rank after step {mark.step}",
                )


def _file_faults(folder: Path, mark: CheckpointMark) -> Iterator[Fault]:
    present = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    whole = {}
    for name in sorted(mark.files.keys() | present.keys()):
        context = CONTEXT.at(folder / name)
        if name not in mark.files:
            fix = "remove the file: the checkpoint was sealed without it"
            yield context.fault(found="a file that the mark does not list", expected="no file", fix=fix)
        elif name not in present:
            yield context.fault(found="no such file", expected=f"a file of {mark.files[name].bytes:,} bytes")
        elif (size := present[name].stat().st_size) != mark.files[name].bytes:
            yield context.fault(found=f"{size:,} bytes", expected=f"{mark.files[name].bytes:,} bytes")
        else:
            whole[name] = present[name]
    hashes = hash_files(whole.values())
    for name, path in whole.items():
        if hashes[path] != mark.files[name].sha256:
            found, expected = f"SHA-256 {hashes[path]}", f"SHA-256 {mark.files[name].sha256}"
            yield CONTEXT.fault(file=path, found=found, expected=expected)
