"""Whether a folder may hold a plan's run.

A folder holds the run of one plan. A folder with another plan's run, a finished run or other files is refused. The
gates check this before anything starts; `el run` checks it again under the run's lock, because the process that held
the lock before may have completed the run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import log_file
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.atomic import TEMPORARY_PREFIX
from explicit_learning.files.regular import NotRegularError, open_regular
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoints import renamed_checkpoints
from explicit_learning.rundir.run_manifest import changed_plan_faults, read_run_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.rundir.run_manifest import RunManifest

__all__ = ["ACCOUNTING", "OTHER_FOLDER", "lacks_statement", "ownership_faults", "require_own_folder"]

OTHER_FOLDER = "choose another folder (--out)"
CONTEXT = Context(gate="output", fix=OTHER_FOLDER, exit_code=ExitCode.OUTPUT)
LONGER = f"to train longer, freeze an RL plan whose initial_adapter is this run's {layout.FINAL_ADAPTER}"
UNFINISHED = "an unfinished run, or no folder"
# Files that do not make a folder someone else's: the lock of a launch that wrote no plan, and a volume's own folder.
IGNORED = {layout.LOCK, "lost+found"}
# What a folder may hold whose run has no manifest yet.
BEFORE_MANIFEST = {layout.PLAN, layout.LOGS}
ACCOUNTING = log_file("ledger", 0).split("/", maxsplit=1)[0]
# What a run writes only once it has its manifest, checkpoints aside.
AFTER_MANIFEST = {layout.EVENTS, layout.METRICS, layout.COMPLETION_MARKER, layout.SMOKE_BOUNDARY, ACCOUNTING}
AFTER_MANIFEST |= {
    layout.FINAL_ADAPTER,
    layout.LAUNCHES,
    layout.RESUME_AUDITS,
    layout.SET_ASIDE,
    layout.EVALUATIONS,
    *layout.TRACKER_FOLDERS,
    layout.OUTPUT_COMPARISON,
    layout.PROVENANCE,
    layout.UNINTERRUPTED,
}
PLAN_LIMIT = 16 * 2**20
NAMES_SHOWN = 5


def require_own_folder(folder: Path, frozen_config_sha256: str) -> None:
    """Refuse to run a plan in a folder that is not its own, or in which its run has ended.

    Raises:
        Refusal: With the faults of `ownership_faults`.
    """
    if faults := ownership_faults(folder, frozen_config_sha256):
        raise Refusal(faults)


def ownership_faults(folder: Path, frozen_config_sha256: str | None) -> list[Fault]:
    """Return why a run cannot start or go on in a folder because of what the folder holds.

    Args:
        folder: The run folder; it may be missing.
        frozen_config_sha256: Identity of the plan; a folder that holds an unfinished run of this plan is there to be
            resumed. ``None`` (no plan yet) accepts only a folder that holds nothing.

    Returns:
        Faults with exit code 73 (the folder is another's, or the run is complete), 79 (the run's token budget has
        ended) or 65 (its run manifest is damaged, its plan was changed, or a checkpoint was renamed).

    Raises:
        OSError: If the folder cannot be read.
    """
    return list(_faults(folder, frozen_config_sha256)) if folder.is_dir() else []


def _faults(folder: Path, frozen_config_sha256: str | None) -> Iterator[Fault]:
    names = {
        entry.name
        for entry in folder.iterdir()
        if not entry.name.startswith(TEMPORARY_PREFIX) and not layout.is_of_file_system(entry.name)
    } - IGNORED
    if not names:
        return
    context = CONTEXT.at(folder)
    if layout.PLAN in names and (folder / layout.PLAN).is_dir():
        found, fix = "a folder", f"remove this folder, or {OTHER_FOLDER}"
        yield CONTEXT.fault(file=folder / layout.PLAN, found=found, expected="the plan's file", fix=fix)
        return
    owner = _owner(folder / layout.PLAN) if layout.PLAN in names else None
    records = sorted(names & {layout.RUN_MANIFEST, layout.COMPLETION_MARKER})
    if owner is None and records:
        found = f"{' and '.join(records)} without the {layout.PLAN} of a run"
        yield context.fault(found=found, expected="a whole run, or no folder")
    elif owner is None:
        yield _foreign_files(context, names)
    elif owner != frozen_config_sha256:
        expected = f"a run of plan {frozen_config_sha256}" if frozen_config_sha256 else "an empty folder, or no folder"
        found = f"it holds a run of another plan ({owner})"
        yield context.fault(found=found, expected=expected, fix=f"{OTHER_FOLDER}; {LONGER}")
    elif layout.RUN_MANIFEST in names:
        yield from _end_faults(context, folder, has_marker=layout.COMPLETION_MARKER in names)
    elif written := sorted(name for name in names if name in AFTER_MANIFEST or layout.step_of(name)):
        found = f"{_shown(written)} without {layout.RUN_MANIFEST}"
        fix = f"restore {layout.RUN_MANIFEST} from a copy, or {OTHER_FOLDER}"
        yield context.fault(found=found, expected="a whole run, or no folder", fix=fix)
    elif other := names - BEFORE_MANIFEST:
        yield _foreign_files(context, other)


def lacks_statement(run: Path, manifest: RunManifest) -> bool:
    """Whether a run is complete but for its statement; a smoke run once its outputs have been compared.

    Args:
        run: The run directory.
        manifest: Its manifest.
    """
    if manifest.status != "completed" or (run / layout.statement_file()).is_file():
        return False
    return manifest.frozen.run_mode == "main" or (run / layout.OUTPUT_COMPARISON).is_file()


def _foreign_files(context: Context, names: set[str]) -> Fault:
    found = f"it holds files that do not belong to a run: {_shown(sorted(names))}"
    return context.fault(found=found, expected="an empty folder, or no folder")


def _shown(names: list[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN])


def _end_faults(context: Context, folder: Path, *, has_marker: bool) -> Iterator[Fault]:
    """Look at how far the plan's run has come.

    A crash can keep the run manifest from recording what the marker records, or the run from its statement: that run
    is left to be finalised.
    """
    try:
        manifest = read_run_manifest(folder)
    except Refusal as refusal:
        yield from refusal.faults
        return
    if faults := changed_plan_faults(folder, manifest):
        yield from faults
        return
    status = manifest.status
    if lacks_statement(folder, manifest):
        return
    if status == "completed":
        fix = f"use what is there, or {OTHER_FOLDER} to run again; {LONGER}"
        yield context.fault(found="this run is already complete", expected=UNFINISHED, fix=fix)
    elif status == "budget_exhausted" and not has_marker:
        yield context.fault(
            found="the token budget of this run has ended",
            expected="a run with tokens left",
            fix=f"freeze a plan with a larger budget.max_completion_tokens_per_run, and {OTHER_FOLDER}",
            exit_code=ExitCode.BUDGET_EXHAUSTED,
        )
    else:
        yield from _renamed_faults(folder)


def _renamed_faults(folder: Path) -> Iterator[Fault]:
    """Name checkpoints that were renamed by hand: a run would resume from the wrong one, or remove one as too old."""
    renamed = renamed_checkpoints(folder)
    for name, right in renamed.items():
        fix = f"rename the folder back to {right}"
        if right in renamed:
            fix += f", once the folder that has this name now is {renamed[right]} again"
        elif (folder / right).exists():
            fix = f"move the folder out of the run directory: {right} is there, too"
        yield Context(gate="checkpoint", file=str(folder / name)).fault(
            pointer="/step", found=f"a checkpoint whose mark says {right}", expected=f"the checkpoint {name}", fix=fix
        )


def _owner(plan: Path) -> str | None:
    """Return the frozen hash of the plan that a run folder holds; ``None`` if the file is not a plan."""
    try:
        with open_regular(plan) as stream:
            data = stream.read(PLAN_LIMIT)
    except NotRegularError:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    sha256 = value.get("frozen_config_sha256") if isinstance(value, dict) else None
    return sha256 if isinstance(sha256, str) else None
