"""The two moments at which a run directory changes hands: before the ranks start, and after they have ended.

Both run in a process without torch, under the run's lock. Everything in between may be killed at any instant, so the
first moment starts by asking what the last launch left behind: nothing, a checkpoint, a completion that was never
entered into the manifest, or an end.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from explicit_learning.completion.card import CardRecords, model_card
from explicit_learning.completion.finished_run import read_finished_run
from explicit_learning.completion.launch_end import (
    LaunchEnd,
    agreed_status,
    defect_fault,
    end_faults,
    exit_code_of_ranks,
    unrecorded_fault,
)
from explicit_learning.completion.launches import other_gpus, record_end
from explicit_learning.completion.marker import UNCHANGED, FinishedRun, add_up_launches, build_marker, count_run
from explicit_learning.completion.rules import broken_completion_rules
from explicit_learning.completion.smoke_proof import broken_smoke_rules
from explicit_learning.completion.statement import write_statement
from explicit_learning.completion.validation import broken_validation_rules
from explicit_learning.errors import Context, ExitCode, Refusal, exit_code_of
from explicit_learning.files.atomic import write_bytes, write_text
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.limits import noted_limits
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.progress import say
from explicit_learning.gates.resume import check_resume
from explicit_learning.gates.signing import named_signer
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoint_mark import verify_checkpoint
from explicit_learning.rundir.checkpoints import (
    complete_checkpoints,
    newest_complete,
    remove_half_written,
    set_aside_folder,
    set_aside_incomplete,
)
from explicit_learning.rundir.completion_marker import Parameters, read_marker, write_marker
from explicit_learning.rundir.events import GatesRecord, append_event
from explicit_learning.rundir.output_comparison import compared_run
from explicit_learning.rundir.owner import OTHER_FOLDER, lacks_statement, require_own_folder
from explicit_learning.rundir.resume_audit import read_audits
from explicit_learning.rundir.run_manifest import (
    amend_completed,
    create_run_manifest,
    read_run_manifest,
    set_status,
    write_run_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.launches import Machine
    from explicit_learning.rundir.outcome import RankOutcome
    from explicit_learning.rundir.run_manifest import RunManifest

__all__ = ["Preparation", "after_ranks", "prepare_run"]

CONTEXT = Context(gate="completion")
STATE_LATER = "the run is complete but for its statement: then run the same command again, which writes only that"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is to be done with a run directory.

    Attributes:
        action: ``fresh`` starts from the seed; ``resume`` continues from ``checkpoint``; ``finalise`` means that the
            run was complete, and that its manifest now records it: there is nothing to launch.
        checkpoint: Name of the checkpoint folder to resume from, verified.
        run_manifest_sha256: Hash of the run manifest's frozen part.
        launch_id: Random name of this launch.
        accept_changes: Whether launches and nodes may differ in what decides numbers.
    """

    action: Literal["fresh", "resume", "finalise"]
    checkpoint: str | None
    run_manifest_sha256: str
    launch_id: str
    accept_changes: bool = False


# --- before the ranks -------------------------------------------------------------------------------------------------


def prepare_run(
    run: Path,
    *,
    plan: Plan,
    plan_bytes: bytes,
    plan_file: Path | None = None,
    machine: Machine,
    launch_id: str,
    accept_changes: bool = False,
    signing_key: str | None = None,
) -> Preparation:
    """Make a run directory ready for ranks, under the run's lock and after all gates have passed.

    Args:
        run: The run directory; made if missing.
        plan: The plan.
        plan_bytes: The bytes of its file, which are copied.
        plan_file: That file, for the event log.
        machine: This machine.
        launch_id: Random name of this launch.
        accept_changes: Whether launches may differ in what decides numbers.
        signing_key: What signs the statement of a run that only needs finalising (see `named_signer`).

    Raises:
        Refusal: With exit code 73 if the run is complete or the directory is another run's, 79 if its budget ended, 65
            if its newest checkpoint, its manifest, its plan, a resume audit or the record of a launch is damaged, 69 or
            78 if other numbers would be computed here than up to the newest checkpoint, 74 if the disk is full or
            failing.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        require_own_folder(run, plan.frozen_config_sha256)
        manifest = _read_or_create_manifest(run, plan, plan_bytes)
        left = remove_half_written(run)
        if (run / layout.COMPLETION_MARKER).exists():
            return _finalise(run, manifest, launch_id, signing_key)
        read_audits(run)  # a damaged one would keep the run from being completed, after all its training
        record = GatesRecord(
            launch_id=launch_id,
            plan_file=None if plan_file is None else str(plan_file.resolve()),
            not_removed=tuple(left),
            file_system=tuple(noted_limits()),
        )
        append_event(run, "gates", record)
        _tidy(run)
        if plan.run_mode == "smoke":
            _return_to_boundary(run)
        checkpoint = newest_complete(run)
        if checkpoint is not None:
            verify_checkpoint(run / checkpoint, plan, run_manifest_sha256=manifest.run_manifest_sha256)
        compared = compared_run(run, plan.frozen_config_sha256)
        faults, _ = check_resume(compared or run, machine.platform, plan.hardware, accepted=accept_changes)
        if faults:
            raise Refusal(faults)
        action: Literal["fresh", "resume"] = "fresh" if checkpoint is None else "resume"
        set_status(run, "running")
        append_event(run, "launch", {"launch_id": launch_id, "action": action, "checkpoint": checkpoint})
    except OSError as error:
        raise Refusal(write_fault(error, run)) from error
    return Preparation(
        action=action,
        checkpoint=checkpoint,
        run_manifest_sha256=manifest.run_manifest_sha256,
        launch_id=launch_id,
        accept_changes=accept_changes,
    )


def _read_or_create_manifest(run: Path, plan: Plan, plan_bytes: bytes) -> RunManifest:
    """Return the run's manifest; a run that has none yet gets it, after the copy of its plan."""
    if (run / layout.RUN_MANIFEST).exists():
        return read_run_manifest(run)
    write_bytes(run / layout.PLAN, plan_bytes)
    sha256 = hashlib.sha256(plan_bytes).hexdigest()
    manifest = create_run_manifest(plan, plan_sha256=sha256)
    write_run_manifest(run, manifest)
    return manifest


def _finalise(run: Path, manifest: RunManifest, launch_id: str, signing_key: str | None) -> Preparation:
    """Enter a completion into the manifest and write the statement, as far as a crash kept them from being written."""
    marker = read_marker(run)
    if (found := marker.identities.run_manifest_sha256) != (expected := manifest.run_manifest_sha256):
        raise CONTEXT.refusal(
            file=run / layout.COMPLETION_MARKER,
            pointer="/identities/run_manifest_sha256",
            found=found,
            expected=f"{expected}, as in {layout.RUN_MANIFEST}",
            fix=f"restore the run directory from a copy, or {OTHER_FOLDER}",
            exit_code=ExitCode.OUTPUT,
        )
    sha256 = sha256_file(run / layout.COMPLETION_MARKER)
    if manifest.status != "completed":
        if manifest.status != "running":
            set_status(run, "running")
        manifest = amend_completed(
            run,
            optimizer_steps=marker.counts.optimizer_steps,
            running_commit=marker.identities.running_commit,
            running_dirty=marker.identities.running_dirty,
            marker_sha256=sha256,
        )
    append_event(run, "finalise", {"completion_marker_sha256": sha256})
    say(f"{run}: this run was already complete; its manifest now records it")
    if lacks_statement(run, manifest):
        write_statement(run, named_signer(signing_key))
        say(f"{run}: its statement is written")
    return Preparation(action="finalise", checkpoint=None, run_manifest_sha256=expected, launch_id=launch_id)


def _tidy(run: Path) -> None:
    """Move aside what a kill left incomplete, and report it."""
    for stored in set_aside_incomplete(run):
        append_event(run, "set-aside", {"what": "half-written checkpoint", "stored": stored})
        say(f"half-written checkpoint moved to {stored}")
    if (run / layout.FINAL_ADAPTER).exists():
        stored = set_aside_folder(run, layout.FINAL_ADAPTER)
        append_event(run, "set-aside", {"what": "final adapter without a completion marker", "stored": stored})
        say(f"final adapter of an attempt that did not complete moved to {stored}")


def _return_to_boundary(run: Path) -> None:
    """Let a smoke run's second phase start at the boundary: what an interrupted one left beyond it goes aside."""
    if (run / layout.checkpoint_name(SMOKE_STOP_STEP)).exists():
        for name in complete_checkpoints(run):
            if (layout.step_of(name) or 0) > SMOKE_STOP_STEP:
                stored = set_aside_folder(run, name)
                append_event(run, "set-aside", {"what": "checkpoint beyond the smoke boundary", "stored": stored})


# --- after the ranks --------------------------------------------------------------------------------------------------


def after_ranks(
    manifest: LaunchManifest, outcomes: Sequence[RankOutcome], *, signing_key: str | None = None
) -> LaunchEnd:
    """Complete the run if its ranks reached the last step, record how the launch ended, and write the statement.

    Args:
        manifest: The launch manifest.
        outcomes: Each rank's outcome, by rank.
        signing_key: What signs the statement (see `named_signer`); ``None`` leaves it unsigned.
    """
    run, status = manifest.run, agreed_status(outcomes)
    code = exit_code_of_ranks(status, outcomes)
    broken: tuple[Fault, ...] = ()
    try:
        if status != "completed":
            set_status(run, status)
        elif manifest.uninterrupted:
            _finished(manifest, outcomes)
            set_status(run, "stopped")  # only the run that it is compared with becomes complete
        else:
            _complete(_finished(manifest, outcomes))
    except Refusal as refusal:
        broken, code = refusal.faults, refusal.exit_code
    except OSError as error:
        fault = write_fault(error, run)
        broken, code = (fault,), fault.exit_code
    except Exception as error:  # a defect of this program must not leave the run without an end
        logging.getLogger(__name__).exception("the run could not be completed")
        broken, code = (defect_fault(run, error),), ExitCode.INTERNAL
    _show(*broken)
    faults = broken or (() if code is ExitCode.DONE else end_faults(run, code, outcomes))
    if failure := _record_end(manifest, outcomes, code, broken):
        code = code or ExitCode.IO
        unrecorded = unrecorded_fault(run, failure, code)
        _show(unrecorded)
        faults = (*faults, unrecorded)
    elif code is ExitCode.DONE and (unstated := _state(run, signing_key)):
        _show(*unstated)
        code, faults = exit_code_of(unstated), unstated
    return LaunchEnd(exit_code=code, faults=faults)


def _state(run: Path, signing_key: str | None) -> tuple[Fault, ...]:
    """Write the statement of a complete run; return why that failed. The same command writes it later."""
    try:
        if lacks_statement(run, read_run_manifest(run)):
            write_statement(run, named_signer(signing_key))
    except Refusal as refusal:
        return tuple(replace(fault, fix=f"{fault.fix}; {STATE_LATER}") for fault in refusal.faults)
    except OSError as error:
        fault = write_fault(error, run)
        return (replace(fault, fix=f"{fault.fix}; {STATE_LATER}"),)
    except Exception as error:  # a defect of this program must not hide that the run is complete
        logging.getLogger(__name__).exception("the statement could not be written")
        return (defect_fault(run, error),)
    return ()


def _record_end(
    manifest: LaunchManifest, outcomes: Sequence[RankOutcome], code: ExitCode, broken: Sequence[Fault]
) -> Exception | None:
    """Record the end of a launch in the run manifest, its own record and the log; return the first error."""
    run, launch_id, first = manifest.run, manifest.launch_id, None

    def manifest_status() -> None:
        if broken and not (run / layout.COMPLETION_MARKER).exists():
            set_status(run, "failed")

    for step in (
        manifest_status,
        partial(record_end, run, launch_id, code, outcomes, broken),
        partial(append_event, run, "exit", {"launch_id": launch_id, "exit_code": int(code)}),
    ):
        try:
            step()
        except Exception as error:
            if not isinstance(error, OSError | Refusal):
                logging.getLogger(__name__).exception("the end of the run could not be recorded")
            first = first or error
    return first


def _show(*faults: Fault) -> None:
    with suppress(OSError):  # nobody may read it any more
        for fault in faults:
            say(str(fault))


def _finished(manifest: LaunchManifest, outcomes: Sequence[RankOutcome]) -> FinishedRun:
    """Return the run, whose ranks reached the last step, if it keeps all completion rules."""
    finished = read_finished_run(manifest, outcomes)
    faults = broken_completion_rules(
        manifest.plan, finished.recounts, finished.reports, adapter_tensors_sha256=finished.adapter_tensors_sha256
    )
    checkpoints = complete_checkpoints(manifest.run)
    faults += broken_validation_rules(manifest.plan, finished.reports[0].log_history, checkpoints)
    faults += broken_smoke_rules(
        manifest.plan,
        [recorded.audit for recorded in read_audits(manifest.run)],
        launch_id=manifest.launch_id,
        checkpoint=manifest.resume_checkpoint,
        uninterrupted=manifest.uninterrupted,
    )
    if faults:
        raise Refusal(faults)
    return finished


def _complete(finished: FinishedRun) -> None:
    """Write model card, marker and amendment, in this order."""
    run = finished.run
    counts = count_run(finished)
    totals = add_up_launches(finished)
    records = CardRecords(
        plan=finished.plan,
        run_manifest=finished.run_manifest,
        launches=finished.launches,
        counts=counts,
        compute=totals.compute,
        log_history=finished.reports[0].log_history,
        modules=Parameters.of(finished.reports[0].trainable_parameters).modules,
        adapter_tensors_sha256=finished.adapter_tensors_sha256,
        unchanged=finished.unchanged,
    )
    write_text(run / layout.FINAL_ADAPTER / layout.MODEL_CARD, model_card(records))
    for other in other_gpus(finished.launches[-1], [report.gpu for report in finished.reports]):
        say(f"warning: {run}: {other}")
    if finished.unchanged:
        say(f"warning: {run}: {UNCHANGED}")
    sha256 = write_marker(run, build_marker(finished, counts, totals))
    amend_completed(
        run,
        optimizer_steps=counts.optimizer_steps,
        running_commit=finished.code.commit,
        running_dirty=finished.code.dirty,
        marker_sha256=sha256,
    )
