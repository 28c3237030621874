"""Can the run be written where it is meant to go, and is that place its own?

Mode bits do not answer the first question: root ignores them, a read-only mount or bind mount overrules them, and a
full disk accepts a file's name but not its content. So the gate really writes, in the way every record of the run is
written (temporary name, fsync, rename, fsync of the folder), and removes what it wrote. The second question matters
because a run folder is evidence: two plans in one folder, or a second run over a finished one, would spoil it.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.files.atomic import TEMPORARY_PREFIX, fsync_folder, write_bytes
from explicit_learning.files.os_errors import write_fault
from explicit_learning.gates.disk import existing_ancestor
from explicit_learning.rundir.run_lock import LOCK_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["COMPLETION_MARKER", "PLAN_NAME", "check_output"]

GATE = "output"
PLAN_NAME = "plan.json"
COMPLETION_MARKER = "training-complete.json"
RUN_MANIFEST = "run-manifest.json"
# Neither makes a folder somebody's: a volume's own folder, and an earlier attempt that ended before its plan was there.
IGNORED = {LOCK_NAME, "lost+found"}
PROBE = b"explicit-learning writes this to see whether it can\n" * 80  # more than a block: a full disk takes the name
SWEEPS = 3
PLAN_LIMIT = 16 * 2**20
OTHER_FOLDER = "choose another folder (--out)"


def check_output(folder: Path, *, frozen_config_sha256: str | None) -> list[Fault]:
    """Say why a run cannot be written to a folder; nothing is left behind.

    Args:
        folder: The run folder; it may be missing, as may its parents.
        frozen_config_sha256: Identity of the plan; a folder that holds a run of this plan is there to be resumed.
            ``None`` (no plan yet) accepts only a folder that holds nothing.

    Returns:
        Faults with exit code 73 (cannot be created, somebody else's, complete already) or 74 (disk full or failing).
    """
    try:
        place = existing_ancestor(folder)
        faults = list(_ownership_faults(folder, frozen_config_sha256)) or list(_place_faults(folder, place))
        if not faults:
            _try_to_write(place)
    except OSError as error:
        return [write_fault(error, folder)]
    return faults


def _place_faults(folder: Path, place: Path) -> Iterator[Fault]:
    """Look for what stands in the way of creating the folder, before trying to."""
    missing = folder.absolute().relative_to(place)
    first = place / missing.parts[0] if missing.parts else None
    if first is not None and first.is_symlink():
        found = f"{first} is a link to {first.readlink()}, which does not exist"
        yield _fault(folder, found, "a folder, or nothing", f"remove the link, or create its target, or {OTHER_FOLDER}")
    elif not place.is_dir():
        yield _fault(folder, f"{place} is not a folder", "a folder, or nothing", OTHER_FOLDER)
    longest = max((len(os.fsencode(part)) for part in missing.parts), default=0)
    if longest > (limit := os.pathconf(place, "PC_NAME_MAX")):
        yield _fault(folder, f"a name of {longest} bytes", f"at most {limit} bytes", "choose a shorter name (--out)")


def _ownership_faults(folder: Path, frozen_config_sha256: str | None) -> Iterator[Fault]:
    """Say whose the folder is, if it is somebody's."""
    if not folder.is_dir():
        return
    names = {entry.name for entry in folder.iterdir() if not entry.name.startswith(TEMPORARY_PREFIX)} - IGNORED
    if not names:
        return
    owner = _owner(folder / PLAN_NAME) if PLAN_NAME in names else None
    if owner is not None and owner != frozen_config_sha256:
        expected = f"a run of plan {frozen_config_sha256}" if frozen_config_sha256 else "an empty folder, or none"
        yield _fault(folder, f"it holds a run of another plan ({owner})", expected, OTHER_FOLDER)
    elif COMPLETION_MARKER in names and not _awaits_amendment(folder / RUN_MANIFEST):
        fix = f"use what is there, or {OTHER_FOLDER} to run again"
        yield _fault(folder, "this run is already complete", "an unfinished run, or no folder", fix)
    elif owner is None:
        listed = ", ".join(sorted(names)[:5])
        yield _fault(folder, f"it holds files that are no run: {listed}", "an empty folder, or none", OTHER_FOLDER)


def _awaits_amendment(run_manifest: Path) -> bool:
    """Whether a crash kept the run manifest from saying what the marker says: the next run command mends that."""
    try:
        value = json.loads(run_manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("status") not in {None, "completed"}


def _owner(plan: Path) -> str | None:
    """Return the frozen hash of the plan that a run folder holds; ``None`` if what lies there is no plan."""
    with plan.open("rb") as stream:
        data = stream.read(PLAN_LIMIT)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    sha256 = value.get("frozen_config_sha256") if isinstance(value, dict) else None
    return sha256 if isinstance(sha256, str) else None


def _try_to_write(place: Path) -> None:
    """Create a folder with a file in it, as runs do, and remove both.

    A run that starts just now, on another node say, sweeps away what looks half-written in its folder: then once more.
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


def _fault(folder: Path, found: str, expected: str, fix: str) -> Fault:
    return Fault(gate=GATE, file=str(folder), found=found, expected=expected, fix=fix, exit_code=ExitCode.OUTPUT)
