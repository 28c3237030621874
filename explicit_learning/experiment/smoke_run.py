"""A smoke run: a short run that is stopped at step 5, resumed by another process, and compared.

Phases 1 and 2 show that a new process restores the whole state. Phase 3 trains the same plan without an interruption,
in a folder inside the run directory, and shows that the same numbers come of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.completion.statement import write_statement
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.experiment.child_command import ask_child
from explicit_learning.experiment.smoke_outputs import compare_outputs, difference_faults, difference_text
from explicit_learning.files.child_environment import KEY_VARIABLE
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.progress import say
from explicit_learning.freeze.smoke_plan import SMOKE_SUFFIX, smoke_plan, write_smoke_plan
from explicit_learning.gates.signing import named_signer
from explicit_learning.inputs.outputs import inputs_of_plan, output_faults
from explicit_learning.launch.multi_node.nodes import find_node_place
from explicit_learning.plan.reading import load_plan, read_plan
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoints import complete_checkpoints, remove
from explicit_learning.rundir.layout import default_run_folder
from explicit_learning.rundir.output_comparison import is_complete_run, read_comparison, write_comparison
from explicit_learning.rundir.owner import lacks_statement, ownership_faults
from explicit_learning.rundir.resume_audit import read_audits
from explicit_learning.rundir.run_lock import hold_run
from explicit_learning.rundir.run_manifest import read_run_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.inputs.sft_pass import SftPass
    from explicit_learning.launch.signals import StopRequest
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.output_comparison import OutputComparison

__all__ = ["SmokeRun", "run_smoke"]

UNINTERRUPTED_PHASE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeRun:
    """A smoke run that passed.

    Attributes:
        run: Its folder.
        plan: The smoke plan's file.
        audit: The file that proves what was restored.
        comparison: The file that compares outputs; ``None`` on a node that follows node 0, which compares them.
        outputs_equal: What it says; ``None`` likewise.
    """

    run: Path
    plan: Path
    audit: Path
    comparison: Path | None
    outputs_equal: bool | None


def run_smoke(
    plan_file: Path,
    out: Path | None,
    *,
    node_flags: Mapping[str, str],
    stop: StopRequest,
    count_steps: Callable[[dict[str, Any], int], SftPass],
    options: Sequence[str] = (),
) -> SmokeRun:
    """Run the three phases of a smoke run, each in processes of its own; a phase that is over is not run again.

    Args:
        plan_file: A smoke plan, or a main plan, of which a smoke plan is derived.
        out: The run's folder; ``None`` for the default one.
        node_flags: The flags of a run over several nodes that were given, by name.
        stop: Notes the signals that this process gets.
        count_steps: Counts the first steps of an SFT pass (see `smoke_plan`).
        options: Further options of `el run`, for all phases.

    Raises:
        Refusal: If the plan is refused, a phase ends otherwise than it should, or outputs differ that must be equal.
    """
    plan_file, plan, run = _plan_and_folder(plan_file, out, count_steps)
    node = find_node_place(node_flags)
    compares = node is None or node.rank == 0
    first = _next_phase(run, plan)
    known = read_comparison(run) if first == UNINTERRUPTED_PHASE else None
    if known is not None and not lacks_statement(run, read_run_manifest(run)):
        raise Refusal(difference_faults(run, known) or ownership_faults(run, plan.frozen_config_sha256))
    for phase in () if known else range(first, UNINTERRUPTED_PHASE + 1):
        folder = run
        if phase == UNINTERRUPTED_PHASE:
            folder = run / layout.UNINTERRUPTED
            if compares:
                _empty(folder)
        say(f"smoke phase {phase} of {UNINTERRUPTED_PHASE}: {folder}")
        command = ["run", str(plan_file), "--out", str(folder), *options, *_flags_of_phase(node_flags, phase)]
        code, faults = ask_child(command, stop)
        if not _is_over(run, phase, code):
            begins_again = phase == UNINTERRUPTED_PHASE and code == ExitCode.STOPPED
            raise Refusal(_failed_phase(folder, phase, code) if begins_again or not faults else faults)
        if stop.requested() and phase < UNINTERRUPTED_PHASE:
            found, expected = f"a stop signal before phase {phase + 1}", f"{UNINTERRUPTED_PHASE} phases"
            context = Context(gate="smoke", file=str(run), exit_code=ExitCode.STOPPED)
            raise Refusal(context.fault(found=found, expected=expected, fix="run the same command again"))
    recorded = read_audits(run)[-1]
    audit = recorded.audit
    components = sum(len(rank.components) for rank in audit.ranks)
    say(f"{run}: resumed at {audit.checkpoint} in new processes; {components} components equal ({recorded.file})")
    comparison = known or (_compare(run, plan) if compares else None)
    if comparison is not None:
        _state(run)
        if unequal := difference_faults(run, comparison):
            raise Refusal(unequal)
    return SmokeRun(
        run=run,
        plan=plan_file,
        audit=run / recorded.file,
        comparison=run / layout.OUTPUT_COMPARISON if comparison else None,
        outputs_equal=comparison.equal if comparison else None,
    )


def _compare(run: Path, plan: Plan) -> OutputComparison:
    """Compare the outputs of both runs, record and say what was found, and remove an uninterrupted run that is equal.

    Raises:
        Refusal: If the comparison cannot be written.
    """
    comparison = compare_outputs(run, plan)
    try:
        write_comparison(run, comparison)
    except OSError as error:
        raise Refusal(write_fault(error, run)) from error
    if difference_faults(run, comparison):
        return comparison
    steps, other = plan.optimisation.max_steps, run / layout.UNINTERRUPTED
    if first := comparison.first_difference:
        say(
            f"warning: {run}: outputs differ from {other}, first at {difference_text(first)}, where that run has "
            f"{first.uninterrupted}. Determinism {plan.determinism} does not promise that they are equal"
        )
        return comparison
    what = "completions, metrics and final adapter" if plan.samples else "metrics and final adapter"
    say(f"{run}: {what} of {steps} steps equal those of an uninterrupted run ({layout.OUTPUT_COMPARISON})")
    if reason := remove(other):
        say(f"{other} is not needed any more and could not be removed ({reason})")
    return comparison


def _state(run: Path) -> None:
    """Write the statement of a smoke run whose outputs have been compared.

    Raises:
        Refusal: If it cannot be signed or written; the same command writes it later.
    """
    signer = named_signer(os.environ.get(KEY_VARIABLE))
    with hold_run(run):
        try:
            write_statement(run, signer)
        except OSError as error:
            raise Refusal(write_fault(error, run)) from error


def _plan_and_folder(
    path: Path, out: Path | None, count_steps: Callable[[dict[str, Any], int], SftPass]
) -> tuple[Path, Plan, Path]:
    """Return the smoke plan's file, the smoke plan and the run's folder."""
    document = read_plan(path)
    plan = document.plan
    if plan is None:
        raise Refusal(document.faults)
    if plan.run_mode == "smoke":
        return path, plan, out or default_run_folder(plan.run_id)
    run = out or default_run_folder(plan.run_id + SMOKE_SUFFIX)
    file = run.with_name(f"{run.name}.plan.json")
    inputs = inputs_of_plan(document)
    if faults := output_faults(run, inputs, option="--out") or output_faults(file, inputs, option="--out"):
        raise Refusal(faults)
    write_smoke_plan(smoke_plan(document.raw, file=path, out=file, count_steps=count_steps), file)
    say(f"{file}: the smoke plan of {path}")
    return file, load_plan(file), run


def _next_phase(run: Path, plan: Plan) -> int:
    """Return the first phase that is not over."""
    if is_complete_run(run, plan.frozen_config_sha256):
        return UNINTERRUPTED_PHASE
    return 2 if _is_at_boundary(run) else 1


def _is_over(run: Path, phase: int, code: int) -> bool:
    """Whether a phase that ended with an exit code is over: the first at the boundary, the others at the last step."""
    return code == ExitCode.STOPPED and _is_at_boundary(run) if phase == 1 else code == ExitCode.DONE


def _empty(folder: Path) -> None:
    """Remove what an interrupted third phase left: it would be resumed, and not be an uninterrupted run.

    Raises:
        Refusal: If another process trains there, or something cannot be removed.
    """
    if not folder.is_dir():
        return
    with hold_run(folder):
        for path in sorted(folder.iterdir()):
            if path.name != layout.LOCK and (reason := remove(path)):
                raise Context(gate="smoke", file=str(path), exit_code=ExitCode.IO).refusal(
                    found=f"it cannot be removed: {reason}",
                    expected="an empty folder, in which the uninterrupted phase starts from the beginning",
                    fix=f"remove {folder}, then run the same command again",
                )


def _is_at_boundary(run: Path) -> bool:
    """Whether a smoke run's first phase is over."""
    return (run / layout.SMOKE_BOUNDARY).is_file() and layout.checkpoint_name(SMOKE_STOP_STEP) in complete_checkpoints(
        run
    )


def _flags_of_phase(node_flags: Mapping[str, str], phase: int) -> list[str]:
    """Return the flags of several nodes for one phase: it is a launch of its own, and so has a name of its own."""
    flags = dict(node_flags)
    if "rdzv_id" in flags:
        flags["rdzv_id"] += f".{phase}"
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)]


def _failed_phase(folder: Path, phase: int, code: int) -> Fault:
    """Return the fault of a phase that left no answer."""
    known = ExitCode(code) if code in set(ExitCode) else ExitCode.INTERNAL
    fix = f"read the lines above and {folder / layout.LOGS}"
    if known is ExitCode.STOPPED:
        where = "begins this phase again" if phase == UNINTERRUPTED_PHASE else "continues from the newest checkpoint"
        fix = f"run the same command again: it {where}"
    stop = f"exit code {int(ExitCode.STOPPED)} at {layout.checkpoint_name(SMOKE_STOP_STEP)}"
    return Context(gate="smoke", file=str(folder), exit_code=known).fault(
        found=f"phase {phase} ended with exit code {code}", expected=stop if phase == 1 else "exit code 0", fix=fix
    )
