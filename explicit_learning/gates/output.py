"""The gate of the run folder: the plan's run can be written there, and no other run is there.

Permission bits do not show whether a folder is writable: root ignores them, a read-only mount overrules them, and a
full disk accepts a file's name but not its content. So the gate writes a file as every record of a run is written
(temporary name, fsync, rename, fsync of the folder), and removes it. `explicit_learning.rundir.owner` finds other runs.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.atomic import TEMPORARY_PREFIX, fsync_folder, write_bytes
from explicit_learning.files.os_errors import write_fault
from explicit_learning.gates.disk import existing_ancestor
from explicit_learning.rundir.owner import OTHER_FOLDER, ownership_faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.errors import Fault

__all__ = ["check_output", "place_faults"]

CONTEXT = Context(gate="output", fix=OTHER_FOLDER, exit_code=ExitCode.OUTPUT)
PROBE = b"explicit-learning writes this to see whether it can\n" * 80  # more than a block: a full disk takes the name
SWEEPS = 3


def check_output(folder: Path, *, frozen_config_sha256: str | None) -> list[Fault]:
    """Return why a run cannot be written to a folder; nothing is left behind.

    Args:
        folder: The run folder; it may be missing, as may its parents.
        frozen_config_sha256: Identity of the plan; a folder that holds a run of this plan is there to be resumed.
            ``None`` (no plan yet) accepts only a folder that holds nothing.

    Returns:
        Faults with exit code 73 (cannot be created) or 74 (disk full or failing), or those of `ownership_faults`.
    """
    try:
        owned = ownership_faults(folder, frozen_config_sha256)
    except OSError as error:
        return [write_fault(error, folder)]
    return owned or place_faults(folder)


def place_faults(folder: Path) -> list[Fault]:
    """Return why nothing can be written to a folder, which may be missing; nothing is left behind."""
    try:
        place = existing_ancestor(folder)
        faults = list(_place_faults(folder, place))
        if not faults:
            _try_to_write(place)
    except OSError as error:
        return [write_fault(error, folder)]
    return faults


def _place_faults(folder: Path, place: Path) -> Iterator[Fault]:
    """Look for what stands in the way of creating the folder, before trying to."""
    context, missing = CONTEXT.at(folder), folder.absolute().relative_to(place)
    first = place / missing.parts[0] if missing.parts else None
    if first is not None and first.is_symlink():
        found = f"{first} is a link to {first.readlink()}, which does not exist"
        fix = f"remove the link, or create its target, or {OTHER_FOLDER}"
        yield context.fault(found=found, expected="a folder, or nothing", fix=fix)
    elif not place.is_dir():
        yield context.fault(found=f"{place} is not a folder", expected="a folder, or nothing")
    longest = max((len(os.fsencode(part)) for part in missing.parts), default=0)
    if longest > (limit := os.pathconf(place, "PC_NAME_MAX")):
        fix = "choose a shorter name (--out)"
        yield context.fault(found=f"a name of {longest} bytes", expected=f"at most {limit} bytes", fix=fix)


def _try_to_write(place: Path) -> None:
    """Create a folder with a file in it, as runs do, and remove both.

    A run that starts at this moment, for example on another node, removes what looks half-written: then try again.
    """
    for _ in range(SWEEPS):
        with suppress(FileNotFoundError):
            return _write_probe(place)
    return _write_probe(place)


def _write_probe(place: Path) -> None:
    folder = place / f"{TEMPORARY_PREFIX}probe-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        write_bytes(folder / "probe", PROBE)
        fsync_folder(place)
    finally:
        with suppress(FileNotFoundError):
            (folder / "probe").unlink()
        folder.rmdir()
