"""What each launch of a run was made on: one file when its ranks start, and one when it ends in order.

A run may be continued on another machine, in another image or by another commit, so none of these belongs to the run:
each launch has its own record, which is never written again. A record names the one before by number and hash. So a
removed or changed one is found at the next launch, and the completion marker holds the hashes of all.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, Refusal
from explicit_learning.files.atomic import TEMPORARY_PREFIX
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.tree import FolderTree, tree_document, tree_sha256
from explicit_learning.files.typed_json import document, write_document
from explicit_learning.rundir import layout
from explicit_learning.rundir.rank_report import PhaseName, PhaseUse, RankGpu  # noqa: TC001 - read at run time
from explicit_learning.rundir.run_manifest import note_launch, run_manifest_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree

__all__ = [
    "Change",
    "CodeIdentity",
    "EndRecord",
    "EnvironmentRecord",
    "ImageDigest",
    "ImageIdentity",
    "Launch",
    "LockIdentity",
    "Machine",
    "Platform",
    "RankEnd",
    "StartRecord",
    "launches_of",
    "read_launches",
    "readable_launches",
    "source_of",
    "write_end",
    "write_start",
]

GATE = "launches"
SCHEMA_VERSION = 1
RESTORE = "restore the folder launches/ from a copy, or start the run again in another folder (--out)"
CONTEXT = Context(gate=GATE, fix=RESTORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDigest:
    """One digest of an image, and how it is known: measured, declared or undeclared."""

    value: str | None
    known_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageIdentity:
    """The image as the gates found it.

    Attributes:
        digests: By kind: index, manifest, config, sif.
        name: Its name as declared.
        baked_in: What its build left in it; ``None`` outside an image.
    """

    digests: dict[str, ImageDigest]
    name: str | None
    baked_in: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeIdentity:
    """The code that runs.

    Attributes:
        commit: Git commit, 40 hexadecimal digits.
        dirty: Whether the code differs from that commit: tracked files do, or an image's code is not what was built.
        known_by: ``image`` if the commit was baked in, ``git`` if the checkout was asked.
        files_sha256: Canonical hash over the program's own files, as they are now.
        built_files_sha256: The same as the image's build left it; ``None`` outside an image.
    """

    commit: str
    dirty: bool
    known_by: str
    files_sha256: str
    built_files_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What computes.

    Attributes:
        hardware: The machine, as `explicit_learning.gates.machine.measure_hardware` found it.
        gpus: UUIDs of the GPUs that the ranks of this machine use, by local rank; empty on a CPU.
        libraries: Versions of Python, of the C library and of every installed distribution, by name.
    """

    hardware: dict[str, Any]
    gpus: tuple[str, ...]
    libraries: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRecord:
    """The environment variables of a launch that are worth a record.

    Attributes:
        settings: What ranks got: what the program decided, and what it let through of libraries that compute.
        overridden: The user's values that were replaced or removed and could change numbers.
        explicit: Every ``EXPLICIT_`` variable that was set; of keys only that they were.
    """

    settings: dict[str, str]
    overridden: dict[str, str]
    explicit: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockIdentity:
    """The lock that the installed packages were compared with: exactly these, and no others.

    Attributes:
        name: Its file name.
        sha256: SHA-256 of its bytes, as the plan holds it.
        additions: Versions of the packages that it has and its parent lock lacks, by name.
    """

    name: str
    sha256: str
    additions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node of a launch."""

    image: ImageIdentity
    lock: LockIdentity
    platform: Platform
    code: CodeIdentity
    environment: EnvironmentRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that differs between two launches, or between two nodes of one: where, and both values as text."""

    pointer: str
    before: str
    now: str


@document("launch-start")
@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    """One launch, as its ranks start.

    Attributes:
        launch_id: Random name of the launch.
        number: Launches of this run before it.
        previous_sha256: SHA-256 of the bytes of the record before; ``None`` for the first.
        previous_end_sha256: The same of that launch's end record; ``None`` if it was killed.
        run_manifest_sha256: Hash of the run manifest's frozen part.
        checkpoint: Name of the checkpoint it continues from; ``None`` if it starts from the seed.
        step: Optimizer steps done at that checkpoint.
        nodes: Its machines; node 0 first.
        accepted_changes: What decides numbers, differs from the launch it continues or between its nodes, and was
            accepted (``--accept-changes``).
    """

    schema_version: int = SCHEMA_VERSION
    launch_id: str
    number: int
    previous_sha256: str | None
    previous_end_sha256: str | None
    run_manifest_sha256: str
    checkpoint: str | None
    step: int
    nodes: tuple[Machine, ...]
    accepted_changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank of a launch ended; its fields are those of `RankOutcome`."""

    rank: int
    status: str
    optimizer_step: int | None
    checkpoint: str | None
    message: str | None
    peak_memory_bytes: int | None
    peak_reserved_bytes: int | None
    device_seconds: float | None
    gpu: RankGpu | None
    phases: dict[PhaseName, PhaseUse] | None


@document("launch-end")
@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """The end of a launch that ended in order; a killed one has none.

    Attributes:
        launch_id: Random name of the launch.
        start_sha256: SHA-256 of the bytes of its start record.
        exit_code: The program's exit code.
        ranks: How each rank ended, by rank.
        faults: What kept a run whose ranks reached the last step from being complete.
    """

    schema_version: int = SCHEMA_VERSION
    launch_id: str
    start_sha256: str
    exit_code: int
    ranks: tuple[RankEnd, ...]
    faults: tuple[dict[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch as its files show it; ``end`` and its hash are ``None`` while it runs, and if it was killed."""

    start: StartRecord
    start_sha256: str
    end: EndRecord | None
    end_sha256: str | None


def write_start(run: Path, record: StartRecord) -> None:
    """Write a launch's start record, whole or not at all, and only once; then enter its hash in the run manifest.

    Raises:
        Refusal: If it breaks its schema (exit code 70).
        FileExistsError: If the launch has a record.
        OSError: If it cannot be written.
    """
    path = run / layout.launch_start_file(record.launch_id)
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if record.previous_sha256 is not None:
        note_launch(run, record.previous_sha256)  # a kill may have kept it from being noted, and may do so again
    write_document(path, record, gate=GATE)
    note_launch(run, sha256_file(path))


def write_end(run: Path, record: EndRecord) -> None:
    """Write a launch's end record, whole or not at all.

    Raises:
        Refusal: If it breaks its schema (exit code 70).
        OSError: If it cannot be written.
    """
    write_document(run / layout.launch_end_file(record.launch_id), record, gate=GATE)


def read_launches(run: Path) -> tuple[Launch, ...]:
    """Return a run's launches in order (see `launches_of`)."""
    return launches_of(FolderTree(run))


def launches_of(tree: Tree) -> tuple[Launch, ...]:
    """Return the launches of a run's files in order; none if none has started ranks.

    Raises:
        Refusal: If a record is damaged, was changed or is missing (exit code 65).
        OSError: If the folder cannot be read.
    """
    launches, faults = readable_launches(tree)
    if faults:
        raise Refusal(faults)
    return launches


def readable_launches(tree: Tree) -> tuple[tuple[Launch, ...], list[Fault]]:
    """Return the launches whose records can be read, in order, and what is wrong with any record or between them.

    Raises:
        OSError: If a record cannot be read.
    """
    folder = tree.place(layout.LAUNCHES)
    if what := tree.others.get(layout.LAUNCHES) or ("a file" if layout.LAUNCHES in tree.files else None):
        expected = "a folder, or nothing before the first launch"
        return (), [CONTEXT.fault(file=folder, found=what, expected=expected)]
    names = {name.rpartition("/")[2] for name in tree.files if name.startswith(f"{layout.LAUNCHES}/")}
    names = {name for name in names if not name.startswith(TEMPORARY_PREFIX) and not layout.is_of_file_system(name)}
    starts = {name for name in names if layout.launch_of_start_file(name)}
    records: list[Launch] = []
    faults: list[Fault] = []
    for name in sorted(starts):
        try:
            records.append(_read(tree, name))
        except Refusal as refusal:
            faults += refusal.faults
    launches = tuple(sorted(records, key=lambda launch: (launch.start.number, launch.start.launch_id)))
    if faults:
        return launches, faults
    if layout.RUN_MANIFEST in tree.files or launches:
        try:
            faults += _not_noted(tree, launches)
        except Refusal as refusal:
            faults += refusal.faults
    before: str | None = None
    before_end: str | None = None
    for number, launch in enumerate(launches):
        start = launch.start
        if (start.number, start.previous_sha256, start.previous_end_sha256) != (number, before, before_end):
            fault = CONTEXT.fault(
                file=tree.place(layout.launch_start_file(start.launch_id)),
                found=f"launch {start.number}; a record before it is missing or was changed",
                expected=f"launch {number}, after {f'the record with SHA-256 {before}' if before else 'no other'}",
            )
            faults.append(fault)
        before, before_end = launch.start_sha256, launch.end_sha256
    if strays := sorted(name for name in names - starts if not _is_end_of(name, launches)):
        expected = "records of launches, and the end of each at most once"
        fix = "remove what is not a record of a launch; restore what is missing from a copy"
        faults.append(CONTEXT.fault(file=folder, found=", ".join(strays), expected=expected, fix=fix))
    return launches, faults


def _not_noted(tree: Tree, launches: Sequence[Launch]) -> Iterator[Fault]:
    """Compare records with the run manifest, which does not name the record of a launch that was killed at once."""
    manifest = run_manifest_of(tree)
    for launch in launches:
        if (found := launch.start.run_manifest_sha256) != manifest.run_manifest_sha256:
            yield CONTEXT.fault(
                file=tree.place(layout.launch_start_file(launch.start.launch_id)),
                pointer="/run_manifest_sha256",
                found=found,
                expected=f"{manifest.run_manifest_sha256}, as in {layout.RUN_MANIFEST}: it is another run's",
            )
    known = [None, *(launch.start_sha256 for launch in launches)][-2:]
    if (noted := manifest.last_launch_sha256) not in known:
        yield CONTEXT.fault(
            file=tree.place(layout.LAUNCHES),
            found=f"{len(launches)} records, of which the newest has SHA-256 {known[-1]}" if launches else "no record",
            expected=f"a newest record with SHA-256 {noted}, as in {layout.RUN_MANIFEST}",
        )


def _is_end_of(name: str, launches: Sequence[Launch]) -> bool:
    return any(layout.launch_end_file(launch.start.launch_id) == f"{layout.LAUNCHES}/{name}" for launch in launches)


def _read(tree: Tree, name: str) -> Launch:
    file = f"{layout.LAUNCHES}/{name}"
    start = tree_document(tree, file, StartRecord, gate=GATE, fix=RESTORE)
    if name != (expected := layout.launch_start_file(start.launch_id).rpartition("/")[2]):
        raise CONTEXT.refusal(file=tree.place(file), pointer="/launch_id", found=name, expected=expected)
    start_sha256, ended = tree_sha256(tree, file), layout.launch_end_file(start.launch_id)
    if ended not in tree.files:
        return Launch(start=start, start_sha256=start_sha256, end=None, end_sha256=None)
    end = tree_document(tree, ended, EndRecord, gate=GATE, fix=RESTORE)
    if end.start_sha256 != start_sha256:
        where, found = tree.place(ended), end.start_sha256
        raise CONTEXT.refusal(file=where, pointer="/start_sha256", found=found, expected=start_sha256)
    return Launch(start=start, start_sha256=start_sha256, end=end, end_sha256=tree_sha256(tree, ended))


def source_of(launches: Sequence[Launch], step: int) -> StartRecord | None:
    """Return the launch that made the last of a run's first ``step`` steps; ``None`` for step 0.

    Steps beyond a checkpoint are made again by the launch that continues from it, so the latest launch that began
    before that step made it.
    """
    return next((launch.start for launch in reversed(launches) if launch.start.step < step), None)
