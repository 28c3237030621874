"""A run as one file: a tar whose bytes depend on the run's files alone, and not on who packs them, where and when."""

from __future__ import annotations

import errno
import hashlib
import os
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, FaultCollector, Refusal, found_text
from explicit_learning.files.atomic import new_file, new_folder, require_free
from explicit_learning.files.hashing import CHUNK
from explicit_learning.files.os_errors import OUTPUT_FIXES, read_fault, write_fault
from explicit_learning.files.progress import progress
from explicit_learning.files.tree import FolderTree, tree_bytes
from explicit_learning.rundir import layout
from explicit_learning.rundir.run_lock import hold_unchanged
from explicit_learning.verify.archive.oci_layout import write_layout
from explicit_learning.verify.archive.tree import END, MAX_FILES, padding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from explicit_learning.verify.archive.oci_layout import Layout

__all__ = ["Packed", "archive_pieces", "pack_run", "run_files"]

RUN = Context(gate="run", fix="name a run directory, such as runs/RUN_ID")
OUTPUT = Context(gate="output", exit_code=ExitCode.OUTPUT)
CHANGED = Context(
    gate="run", exit_code=ExitCode.IO, fix="wait until nothing writes to the run, and run the same command again"
)
MODE = 0o644
STATEMENT = layout.statement_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What was written.

    Attributes:
        archive_sha256: The archive's SHA-256, 64 hex digits.
        bytes: The archive's size.
        files: Number of files in it.
        oci: The layout around it, if one was asked for.
        warnings: What a reader of the archive will miss.
    """

    archive_sha256: str
    bytes: int
    files: int
    oci: Layout | None
    warnings: list[str]


def pack_run(run: Path, out: Path, *, oci: bool = False) -> Packed:
    """Write a run's archive, or an OCI layout with it, whole or not at all. The run is held meanwhile.

    Args:
        run: The run directory, finished or not.
        out: Where the archive appears, or the layout's folder. Nothing may be there.
        oci: Whether to write a layout.

    Raises:
        Refusal: With 65 if the folder is not a run or holds what an archive cannot, 73 if the run is running or the
            place is taken or inside the run, and 74 if a file cannot be read or changed, or the disk is full.
    """
    _require_place(run, out, oci=oci)
    with ExitStack() as held:
        for folder in (run, run / layout.UNINTERRUPTED):
            held.enter_context(hold_unchanged(folder))
        tree = _listed(run)
        files = run_files(tree)
        _require_packable(tree, files)
        hashed = _Hashed()
        statement = None
        if oci and STATEMENT in files:
            statement = layout.STATEMENT, tree_bytes(tree, STATEMENT, gate=RUN.gate)
        found: Layout | None = None
        with progress("packing", sum(files.values()), "B") as advance:
            pieces = hashed.through(archive_pieces(tree, files, advance))
            try:
                if oci:
                    with new_folder(out) as folder:
                        found = write_layout(folder, pieces, statement)
                else:
                    out.parent.mkdir(parents=True, exist_ok=True)
                    with new_file(out) as stream:
                        for piece in pieces:
                            stream.write(piece)
                        _require_absent(out)
            except OSError as error:
                raise Refusal(write_fault(error, out)) from None
    return Packed(
        archive_sha256=hashed.digest.hexdigest(),
        bytes=hashed.size,
        files=len(files),
        oci=found,
        warnings=_warnings(files),
    )


class _Hashed:
    """The hash and the size of what has passed."""

    def __init__(self) -> None:
        self.digest, self.size = hashlib.sha256(), 0

    def through(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.digest.update(piece)
            self.size += len(piece)
            yield piece


def run_files(tree: FolderTree) -> dict[str, int]:
    """Return the sizes in bytes of a run's files, by name, sorted by the bytes of their names.

    The lock, what a kill left behind, and what a file system put there do not belong to the run.
    """
    names = sorted(filter(layout.belongs_to_run, tree.files), key=os.fsencode)
    return {name: tree.files[name] for name in names}


def archive_pieces(
    tree: FolderTree, files: dict[str, int], advance: Callable[[int], None] = lambda _: None
) -> Iterator[bytes]:
    """Yield an archive's bytes, piece by piece of at most 1 MiB.

    Raises:
        Refusal: If a file cannot be read, or the run changes meanwhile.
    """
    for name, size in files.items():
        yield _header(name, size)
        for piece in _content(tree, name, size):
            advance(len(piece))
            yield piece
        yield bytes(padding(size))
    now = _listed(tree.root)
    if changed := _difference(files, run_files(now)) or next(filter(layout.belongs_to_run, now.others), None):
        raise _changed(now, changed)
    yield END


def _header(name: str, size: int) -> bytes:
    """Return a file's header: that of USTAR, and an extended one before it where name or size need that."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, MODE  # no time, no owner
    try:
        return member.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    except ValueError:  # not ASCII, too long, or 8 GiB and more
        return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _content(tree: FolderTree, name: str, size: int) -> Iterator[bytes]:
    """Yield a file's bytes, and refuse it unless it stays as it was listed."""
    try:
        with tree.open(name) as stream:
            before, left = os.fstat(stream.fileno()), size
            while left and (piece := stream.read(min(CHUNK, left))):
                left -= len(piece)
                yield piece
            after = os.fstat(stream.fileno())
    except FileNotFoundError:
        raise _changed(tree, name) from None
    except OSError as error:
        raise Refusal(read_fault(error, tree.place(name), gate=RUN.gate)) from None
    if left or after.st_size != size or after.st_mtime_ns != before.st_mtime_ns:
        raise _changed(tree, name)


def _changed(tree: FolderTree, name: str) -> Refusal:
    return CHANGED.at(tree.place(name)).refusal(
        found="a file that changed while the run was packed", expected="a run that nothing writes to"
    )


def _difference(files: dict[str, int], now: dict[str, int]) -> str | None:
    """Return a name that is in one listing alone, or whose size differs."""
    return next((name for name in files | now if files.get(name) != now.get(name)), None)


def _listed(run: Path) -> FolderTree:
    try:
        return FolderTree(run)
    except OSError as error:
        raise Refusal(read_fault(error, run, gate=RUN.gate, expected="a readable run directory")) from None


def _require_place(run: Path, out: Path, *, oci: bool) -> None:
    """Refuse a run that is not a folder, and a place where nothing may be written."""
    if not run.is_dir():
        found = "a file" if run.exists() else "no such folder"
        raise RUN.at(run).refusal(found=found, expected="a run directory")
    whole, place = run.resolve(), out.resolve()
    if place == whole or whole in place.parents:
        raise OUTPUT.at(out).refusal(
            found=f"a place inside the run directory {run}",
            expected="a place outside of it: a run's files are those that its statement covers",
            fix="choose another place (--out)",
        )
    if oci:
        try:
            require_free(out)
        except OSError as error:
            raise Refusal(write_fault(error, out)) from None
    else:
        _require_absent(out)


def _require_absent(out: Path) -> None:
    if os.path.lexists(out):
        raise OUTPUT.at(out).refusal(
            found="something is there already", expected="a place where nothing is", fix=OUTPUT_FIXES[errno.EEXIST]
        )


def _require_packable(tree: FolderTree, files: dict[str, int]) -> None:
    """Refuse a folder without a plan, and what an archive of a run never holds."""
    faults = FaultCollector(RUN.at(tree.root))
    if layout.PLAN not in files:
        faults.report(found=f"a folder without {layout.PLAN}", expected="a run directory")
    for name in filter(layout.belongs_to_run, tree.others):
        faults.report(
            file=tree.place(name),
            found=tree.others[name],
            expected="regular files: nobody else has what it leads to",
            fix="put the file itself in its place, or remove it",
        )
    for name in files:
        if not name.isascii() and any("\udc80" <= character <= "\udcff" for character in name):
            found = f"a name that is not UTF-8: {found_text(name)}"
            faults.report(found=found, expected="names in UTF-8", fix="rename the file, or remove it")
    if len(files) > MAX_FILES:
        fix = "remove checkpoints that are not needed, or copy the folder itself"
        faults.report(found=f"{len(files):,} files", expected=f"at most {MAX_FILES:,}", fix=fix)
    faults.refuse_if_any()


def _warnings(files: dict[str, int]) -> list[str]:
    if layout.COMPLETION_MARKER not in files:
        return [f"has no {layout.COMPLETION_MARKER}: the run is not finished, and its archive shows it as it is now"]
    if STATEMENT not in files:
        return [f"has no {STATEMENT}: nothing says which files belong to the run"]
    return []
