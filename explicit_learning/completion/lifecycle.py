"""The two moments at which a run directory changes hands: before the ranks start, and after they have ended.

Both run in a process without torch, under the run's lock. Everything in between may be killed at any instant, so the
first moment starts by asking what the last launch left behind: nothing, a checkpoint, a completion that was never
entered into the manifest, or an end.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.completion.card import CARD_NAME, model_card
from explicit_learning.completion.marker import (
    ADAPTER_FOLDER,
    ADAPTER_WEIGHTS,
    MARKER_NAME,
    build_marker,
    count_launches,
    count_run,
    last_values,
    read_marker,
    write_marker,
)
from explicit_learning.completion.recount import tally_rank
from explicit_learning.completion.rules import broken_completion_rules
from explicit_learning.completion.smoke_proof import broken_smoke_rules, resume_probe
from explicit_learning.errors import ExitCode, Fault, Refusal, found_text
from explicit_learning.files.atomic import TEMPORARY_PREFIX, write_bytes, write_text
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.progress import say
from explicit_learning.files.strict_json import load_json
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir.checkpoints import (
    checkpoint_name,
    complete_checkpoints,
    newest_complete,
    set_aside_folder,
    set_aside_incomplete,
    step_of,
    verify_checkpoint,
)
from explicit_learning.rundir.events import append_event, read_events
from explicit_learning.rundir.rank_report import TrainingFacts
from explicit_learning.rundir.run_manifest import (
    RUN_MANIFEST_NAME,
    amend_completed,
    create_run_manifest,
    read_run_manifest,
    set_status,
    write_run_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.inputs.code import CodeIdentity
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.outcome import RankOutcome, Status

__all__ = ["Preparation", "after_ranks", "prepare_run"]

GATE = "output"
PLAN_NAME = "plan.json"
OTHER_FOLDER = "choose another folder (--out)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is to be done with a run directory.

    Attributes:
        action: ``fresh`` starts from the seed; ``resume`` continues from ``checkpoint``; ``finalise`` means that the
            run was complete, and that its manifest now says so: there is nothing to launch.
        checkpoint: Name of the checkpoint folder to resume from, verified.
        run_manifest_sha256: Hash of the run manifest's frozen part.
    """

    action: Literal["fresh", "resume", "finalise"]
    checkpoint: str | None
    run_manifest_sha256: str


def prepare_run(
    run: Path,
    *,
    plan: Plan,
    plan_bytes: bytes,
    hardware: dict[str, Any],
    image: dict[str, Any],
    code: CodeIdentity,
    launch_id: str,
    gates: dict[str, Any] | None = None,
) -> Preparation:
    """Make a run directory ready for ranks, under the run's lock and after all gates have passed.

    Args:
        run: The run directory; made if missing.
        plan: The plan.
        plan_bytes: The bytes of its file, which are copied.
        hardware: The hardware as the gates found it.
        image: The image's identity as the gates found it.
        code: Identity of the code that runs now.
        launch_id: Random name of this launch.
        gates: What else the gates found worth recording, for the event log.

    Raises:
        Refusal: With exit code 73 if the run is complete or the directory is another run's, 79 if its budget ended, 65
            if its newest checkpoint or its manifest is damaged, 74 if the disk is full or failing.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        _check_plan(run, plan, plan_bytes)
        if not (run / RUN_MANIFEST_NAME).exists():
            _create(run, plan, plan_bytes, hardware, image)
        manifest = read_run_manifest(run)
        sha256 = manifest["run_manifest_sha256"]
        _remove_half_written(run)
        if (run / MARKER_NAME).exists() and manifest["status"] != "completed":
            _finalise(run, manifest)
            return Preparation(action="finalise", checkpoint=None, run_manifest_sha256=sha256)
        _check_not_ended(run, manifest["status"])
        append_event(run, "gates", {"launch_id": launch_id, "hardware": hardware, "image": image} | (gates or {}))
        _tidy(run)
        if plan.run_mode == "smoke":
            _return_to_boundary(run)
        checkpoint = newest_complete(run)
        if checkpoint is not None:
            verify_checkpoint(run / checkpoint, plan, run_manifest_sha256=sha256)
        action: Literal["fresh", "resume"] = "fresh" if checkpoint is None else "resume"
        set_status(run, "running")
        data = {"launch_id": launch_id, "action": action, "checkpoint": checkpoint}
        append_event(run, "launch", data | {"running_commit": code.commit, "running_dirty": code.dirty})
    except OSError as error:
        raise Refusal(write_fault(error, run)) from error
    return Preparation(action=action, checkpoint=checkpoint, run_manifest_sha256=sha256)


def after_ranks(manifest: LaunchManifest, outcomes: Sequence[RankOutcome | None]) -> ExitCode:
    """Record how a launch ended, complete the run if it is complete, and return the program's exit code.

    Args:
        manifest: The launch manifest.
        outcomes: Each rank's outcome, by rank; ``None`` for one that ended without a word.
    """
    run, status = manifest.run, _agreed_status(outcomes)
    faults: tuple[Fault, ...] = ()
    code = _exit_code(status, outcomes)
    try:
        if status == "completed":
            facts = [
                TrainingFacts.from_json(outcome.facts, source=f"facts of rank {rank}")
                for rank, outcome in enumerate(outcomes)
                if outcome is not None
            ]
            _complete(manifest, facts)
        else:
            set_status(run, status)
    except Refusal as refusal:
        faults, code = refusal.faults, refusal.exit_code
    except OSError as error:
        fault = write_fault(error, run)
        faults, code = (fault,), fault.exit_code
    with suppress(OSError):  # nobody may listen any more
        for fault in faults:
            say(str(fault))
    try:
        if faults and not (run / MARKER_NAME).exists():
            set_status(run, "failed")
        append_event(run, "exit", _exit_data(manifest, outcomes, code, faults))
    except (OSError, Refusal) as error:
        with suppress(OSError):
            say(f"the end of the run could not be recorded: {error}")
        code = code or ExitCode.IO
    return code


def _complete(manifest: LaunchManifest, facts: Sequence[TrainingFacts]) -> None:
    """Check the completion rules, then write model card, marker and amendment, in this order."""
    run, plan = manifest.run, manifest.plan
    run_manifest = read_run_manifest(run)
    if (found := run_manifest["run_manifest_sha256"]) != manifest.run_manifest_sha256:
        fix = "the run manifest changed while the run was up: start it again"
        file, expected = str(run / RUN_MANIFEST_NAME), manifest.run_manifest_sha256
        raise Refusal(Fault(gate="completion", file=file, found=found, expected=expected, fix=fix))
    tensors = _adapter_tensors(run)
    ranks = range(plan.hardware.world_size if plan.samples else 0)
    tallies = [tally_rank(run, plan, rank) for rank in ranks]
    faults = broken_completion_rules(plan, tallies, facts, adapter_tensors_sha256=tensors)
    if faults := faults + broken_smoke_rules(manifest):
        raise Refusal(faults)
    counts, commit = count_run(run, plan, tallies, facts[0]), manifest.running_commit
    card = model_card(
        plan,
        run_manifest,
        counts=counts,
        metrics=last_values(facts[0].log_history),
        adapter_tensors_sha256=tensors,
        running_commit=commit,
    )
    write_text(run / ADAPTER_FOLDER / CARD_NAME, card)
    marker = build_marker(
        run,
        plan,
        run_manifest,
        tallies=tallies,
        facts=facts,
        launches=count_launches(read_events(run)[0], facts),
        probe=resume_probe(run),
        counts=counts,
        adapter_tensors_sha256=tensors,
        running_commit=commit,
    )
    sha256 = write_marker(run, marker)
    amend_completed(run, optimizer_steps=facts[0].optimizer_steps, running_commit=commit, marker_sha256=sha256)


def _adapter_tensors(run: Path) -> str:
    path = run / ADAPTER_FOLDER / ADAPTER_WEIGHTS
    if not path.is_file():
        fix = "the trainer must save the adapter before it reports completion: report this as a defect"
        raise Refusal(
            Fault(
                gate="completion",
                file=str(path),
                found="no such file",
                expected="the final adapter",
                fix=fix,
                exit_code=ExitCode.INTERNAL,
            )
        )
    return file_tensors_sha256(path)


def _agreed_status(outcomes: Sequence[RankOutcome | None]) -> Status:
    """Return the status of all ranks together: any failure, silence or disagreement is a failure."""
    found = {outcome.status if outcome is not None else "failed" for outcome in outcomes}
    return found.pop() if len(found) == 1 else "failed"


def _exit_code(status: Status, outcomes: Sequence[RankOutcome | None]) -> ExitCode:
    """Return the status's code; of failures, the first that has one of its own."""
    if status != "failed":
        return next(outcome.code for outcome in outcomes if outcome is not None)
    codes = [outcome.code for outcome in outcomes if outcome is not None and outcome.status == "failed"]
    return next((code for code in codes if code is not ExitCode.INTERNAL), ExitCode.INTERNAL)


def _exit_data(
    manifest: LaunchManifest, outcomes: Sequence[RankOutcome | None], code: ExitCode, faults: Sequence[Fault]
) -> dict[str, Any]:
    return {
        "launch_id": manifest.launch_id,
        "exit_code": int(code),
        "ranks": [
            {"rank": rank, "status": "silent"}
            if outcome is None
            else {
                "rank": rank,
                "status": outcome.status,
                "optimizer_step": outcome.optimizer_step,
                "checkpoint": outcome.checkpoint,
                "message": outcome.message,
                "peak_memory_bytes": outcome.facts.get("peak_memory_bytes"),
                "device_seconds": outcome.facts.get("device_seconds"),
            }
            for rank, outcome in enumerate(outcomes)
        ],
        "faults": [fault.to_json() for fault in faults],
    }


def _check_plan(run: Path, plan: Plan, plan_bytes: bytes) -> None:
    path = run / PLAN_NAME
    if path.exists() and path.read_bytes() != plan_bytes:
        held = load_json(path, gate=GATE)
        found = held.get("frozen_config_sha256") if isinstance(held, dict) else None
        if found != plan.frozen_config_sha256:  # else only the layout of the file differs
            expected = f"a run of plan {plan.frozen_config_sha256}"
            raise _refusal(run, f"it holds a run of another plan ({found_text(found)})", expected, OTHER_FOLDER)
    if not path.exists() and ((run / RUN_MANIFEST_NAME).exists() or (run / MARKER_NAME).exists()):
        raise _refusal(run, f"records of a run without its {PLAN_NAME}", "a whole run, or none", OTHER_FOLDER)


def _create(run: Path, plan: Plan, plan_bytes: bytes, hardware: dict[str, Any], image: dict[str, Any]) -> None:
    if (run / MARKER_NAME).exists():
        raise _refusal(run, f"{MARKER_NAME} without {RUN_MANIFEST_NAME}", "a whole run, or none", OTHER_FOLDER)
    write_bytes(run / PLAN_NAME, plan_bytes)
    sha256 = hashlib.sha256(plan_bytes).hexdigest()
    write_run_manifest(run, create_run_manifest(plan, plan_sha256=sha256, hardware=hardware, image=image))


def _finalise(run: Path, manifest: dict[str, Any]) -> None:
    """Enter a completion into the manifest that a crash kept out of it."""
    marker, sha256 = read_marker(run)
    if (found := marker["identities"]["run_manifest_sha256"]) != manifest["run_manifest_sha256"]:
        expected = f"the marker of run manifest {manifest['run_manifest_sha256']}"
        raise _refusal(run, f"{MARKER_NAME} of run manifest {found}", expected, OTHER_FOLDER)
    if manifest["status"] != "running":
        set_status(run, "running")
    steps, commit = marker["counts"]["optimizer_steps"], marker["identities"]["running_commit"]
    amend_completed(run, optimizer_steps=steps, running_commit=commit, marker_sha256=sha256)
    append_event(run, "finalise", {"completion_marker_sha256": sha256})
    say(f"{run}: this run was complete; its manifest says so now")


def _check_not_ended(run: Path, status: str) -> None:
    if status == "completed":
        fix = f"use what is there, or {OTHER_FOLDER} to run again"
        raise _refusal(run, "this run is already complete", "an unfinished run, or no folder", fix)
    if status == "budget_exhausted":
        fix = f"freeze a plan with a larger budget.max_completion_tokens_per_run, and {OTHER_FOLDER}"
        found, expected = "the token budget of this run has ended", "a run with tokens left"
        raise _refusal(run, found, expected, fix, ExitCode.BUDGET_EXHAUSTED)


def _remove_half_written(run: Path) -> None:
    """Remove files and folders that a kill kept from getting their names: nobody has ever seen them."""
    for path in sorted(run.rglob(f"{TEMPORARY_PREFIX}*")):
        if path.is_dir():
            with suppress(FileNotFoundError):  # so may a probe of another node's gates
                shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it may have gone with its folder


def _tidy(run: Path) -> None:
    """Move aside what a kill left incomplete, and report it."""
    for stored in set_aside_incomplete(run):
        append_event(run, "set-aside", {"what": "half-written checkpoint", "stored": stored})
        say(f"half-written checkpoint moved to {stored}")
    if (run / ADAPTER_FOLDER).exists():
        stored = set_aside_folder(run, ADAPTER_FOLDER)
        append_event(run, "set-aside", {"what": "final adapter without a completion marker", "stored": stored})
        say(f"final adapter of an attempt that did not complete moved to {stored}")


def _return_to_boundary(run: Path) -> None:
    """Let a smoke run's second phase begin at the boundary: what an interrupted one left beyond it goes aside."""
    if (run / checkpoint_name(SMOKE_STOP_STEP)).exists():
        for name in complete_checkpoints(run):
            if (step_of(name) or 0) > SMOKE_STOP_STEP:
                stored = set_aside_folder(run, name)
                append_event(run, "set-aside", {"what": "checkpoint beyond the smoke boundary", "stored": stored})


def _refusal(run: Path, found: str, expected: str, fix: str, code: ExitCode = ExitCode.OUTPUT) -> Refusal:
    return Refusal(Fault(gate=GATE, file=str(run), found=found, expected=expected, fix=fix, exit_code=code))
