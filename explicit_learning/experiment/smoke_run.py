"""A smoke run: a short run that is stopped at step 5, resumed by another process, and proves what it restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.experiment.child_command import ask_child
from explicit_learning.files.progress import say
from explicit_learning.freeze.smoke_plan import SMOKE_SUFFIX, smoke_plan, write_smoke_plan
from explicit_learning.inputs.outputs import inputs_of_plan, output_faults
from explicit_learning.plan.reading import read_plan
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoints import complete_checkpoints
from explicit_learning.rundir.layout import default_run_folder
from explicit_learning.rundir.resume_audit import read_audits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.inputs.sft_pass import SftPass
    from explicit_learning.launch.signals import StopRequest

__all__ = ["SmokeRun", "run_smoke"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeRun:
    """A smoke run that passed.

    Attributes:
        run: Its folder.
        plan: The smoke plan's file.
        audit: The file that proves what was restored.
    """

    run: Path
    plan: Path
    audit: Path


def run_smoke(
    plan_file: Path,
    out: Path | None,
    *,
    node_flags: Mapping[str, str],
    stop: StopRequest,
    count_steps: Callable[[dict[str, Any], int], SftPass],
    options: Sequence[str] = (),
) -> SmokeRun:
    """Run both phases of a smoke run, each in processes of its own; a phase that is over is not run again.

    Args:
        plan_file: A smoke plan, or a main plan, of which a smoke plan is derived.
        out: The run's folder; ``None`` for the default one.
        node_flags: The flags of a run over several nodes that were given, by name.
        stop: Notes the signals that this process gets.
        count_steps: Counts the first steps of an SFT pass (see `smoke_plan`).
        options: Further options of `el run`, for both phases.

    Raises:
        Refusal: If the plan is refused, or a phase ends otherwise than it should.
    """
    plan_file, run = _plan_and_folder(plan_file, out, count_steps)
    while True:
        phase = 2 if _is_at_boundary(run) else 1
        say(f"smoke phase {phase} of 2: {run}")
        command = ["run", str(plan_file), "--out", str(run), *options, *_flags_of_phase(node_flags, phase)]
        code, faults = ask_child(command, stop)
        if phase == 2 or code != ExitCode.STOPPED or stop.requested() or not _is_at_boundary(run):  # noqa: PLR2004 - two phases
            break
    if code != ExitCode.DONE:
        raise Refusal(faults or _failed_phase(run, phase, code))
    recorded = read_audits(run)[-1]
    audit = recorded.audit
    components = sum(len(rank.components) for rank in audit.ranks)
    say(f"{run}: resumed at {audit.checkpoint} in new processes; {components} components equal ({recorded.file})")
    return SmokeRun(run=run, plan=plan_file, audit=run / recorded.file)


def _plan_and_folder(
    path: Path, out: Path | None, count_steps: Callable[[dict[str, Any], int], SftPass]
) -> tuple[Path, Path]:
    """Return the smoke plan's file and the run's folder."""
    document = read_plan(path)
    plan = document.plan
    if plan is None:
        raise Refusal(document.faults)
    if plan.run_mode == "smoke":
        return path, out or default_run_folder(plan.run_id)
    run = out or default_run_folder(plan.run_id + SMOKE_SUFFIX)
    file = run.with_name(f"{run.name}.plan.json")
    inputs = inputs_of_plan(document)
    if faults := output_faults(run, inputs, option="--out") or output_faults(file, inputs, option="--out"):
        raise Refusal(faults)
    write_smoke_plan(smoke_plan(document.raw, file=path, out=file, count_steps=count_steps), file)
    say(f"{file}: the smoke plan of {path}")
    return file, run


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


def _failed_phase(run: Path, phase: int, code: int) -> Fault:
    """Return the fault of a phase that left no answer."""
    known = ExitCode(code) if code in set(ExitCode) else ExitCode.INTERNAL
    fix = f"read the lines above and {run / layout.LOGS}"
    if known is ExitCode.STOPPED:
        fix = "run the same command again: it continues from the newest checkpoint"
    return Context(gate="smoke", file=str(run), exit_code=known).fault(
        found=f"phase {phase} ended with exit code {code}",
        expected=f"exit code {int(ExitCode.STOPPED)} at {layout.checkpoint_name(SMOKE_STOP_STEP)}, then 0",
        fix=fix,
    )
