"""Whether the record of a launch's end agrees with itself, with the launch's start and with the plan.

Each field of such a record follows from how the ranks ended, so that few can be changed alone. Nothing contradicts the
words of a message, or the code with which ranks failed: only they knew.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, found_text
from explicit_learning.files.typed_json import field_names
from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir import layout
from explicit_learning.rundir.launches import RankEnd
from explicit_learning.rundir.outcome import EXIT_CODES
from explicit_learning.verify.contradictions import contradiction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.launches import EndRecord, Launch

__all__ = ["end_record_faults"]

CONTEXT = Context(gate="launches", fix="restore the run directory from a copy: its records contradict each other")
# What only a rank that did not fail knows when its launch ends.
OF_A_RANK_THAT_WENT_ON = tuple(name for name in field_names(RankEnd) if name not in {"rank", "status", "message"})
# What a rank that failed, or a launch that kept its run from being completed, never ends with.
NO_FAILURE = (ExitCode.DONE, ExitCode.STOPPED, ExitCode.BUDGET_EXHAUSTED)

_different = partial(contradiction, CONTEXT)


def end_record_faults(tree: Tree, plan: Plan, launches: Sequence[Launch]) -> Iterator[Fault]:
    """Yield everything that the records of launches' ends contradict.

    Args:
        tree: The run's files.
        plan: The plan.
        launches: The run's launches, in order; of a killed one there is no end.
    """
    for number, launch in enumerate(launches):
        if launch.end is None:
            continue
        file = tree.place(layout.launch_end_file(launch.start.launch_id))
        ranks = [rank.rank for rank in launch.end.ranks]
        expected = list(range(plan.hardware.world_size))
        yield from _different(file, "/ranks", ranks, expected, "every rank of the plan, in order")
        for rank in launch.end.ranks:
            yield from _rank(file, plan, launch, rank)
        if ranks:
            yield from _agreement(file, launch.end)
            yield from _exit_code(file, launch.end)
        if launch.end.exit_code == ExitCode.DONE and number < len(launches) - 1:
            found, expected_end = "0 (done), with a launch after it", "another code: a complete run is not launched"
            yield CONTEXT.fault(file=file, pointer="/exit_code", found=found, expected=expected_end)


def _rank(file: str, plan: Plan, launch: Launch, rank: RankEnd) -> Iterator[Fault]:
    """A rank that failed counted and measured nothing; any other stands at the checkpoint that it names."""
    pointer = f"/ranks/{rank.rank}"
    if rank.status == "failed":
        for name in OF_A_RANK_THAT_WENT_ON:
            source = "for a rank that failed has no more than a message"
            yield from _different(file, f"{pointer}/{name}", getattr(rank, name), None, source)
        if rank.message is None:
            yield CONTEXT.fault(file=file, pointer=f"{pointer}/message", found="null", expected="why the rank failed")
        return
    step, planned, cycle = layout.step_of(rank.checkpoint or "") or 0, plan.optimisation.max_steps, Geometry.of(plan)
    yield from _different(file, f"{pointer}/optimizer_step", rank.optimizer_step, step, "the step of its checkpoint")
    if not launch.start.step <= step <= planned or (step % cycle.iterations and step != planned):
        between = f"a step from {launch.start.step} to {planned} at which a checkpoint is saved"
        yield CONTEXT.fault(file=file, pointer=f"{pointer}/checkpoint", found=f"step {step}", expected=between)
    for name, use in (rank.phases or {}).items():
        if use.peak_memory_bytes is not None and use.peak_memory_bytes > (rank.peak_memory_bytes or 0):
            at, most = f"{pointer}/phases/{name}/peak_memory_bytes", found_text(rank.peak_memory_bytes)
            told = f"at most {most}, the rank's peak_memory_bytes"
            yield CONTEXT.fault(file=file, pointer=at, found=str(use.peak_memory_bytes), expected=told)
    if rank.status == "completed":
        yield from _different(file, f"{pointer}/checkpoint", step, planned, "the last step, which it completed")
        yield from _different(file, f"{pointer}/message", rank.message, None, "for nothing went wrong")


def _agreement(file: str, end: EndRecord) -> Iterator[Fault]:
    """Ranks that stopped, or whose budget ended, did so together."""
    for status in EXIT_CODES:
        steps = {rank.optimizer_step for rank in end.ranks if rank.status == status}
        if len(steps) > 1:
            found = f"ranks that are {status} at steps {', '.join(sorted(map(str, steps)))}"
            yield CONTEXT.fault(file=file, pointer="/ranks", found=found, expected="one step: they ended together")


def _exit_code(file: str, end: EndRecord) -> Iterator[Fault]:
    """The program's exit code is that of its ranks, or of the faults that kept their run from being complete."""
    statuses = {rank.status for rank in end.ranks}
    told = " and ".join(sorted(statuses))
    if end.faults:
        allowed, why = [code for code in ExitCode if code not in NO_FAILURE], "a failure's code, for there are faults"
    elif "failed" in statuses:
        allowed, why = [code for code in ExitCode if code is not ExitCode.DONE], "the code of a rank that failed"
    elif len(statuses) == 1:
        allowed, why = [code for status, code in EXIT_CODES.items() if status in statuses], f"as ranks are {told}"
    else:
        allowed, why = [ExitCode.INTERNAL], f"as ranks ended differently: {told}"
    if end.exit_code not in allowed:
        expected = f"{' or '.join(str(int(code)) for code in allowed)}, {why}"
        yield CONTEXT.fault(file=file, pointer="/exit_code", found=found_text(end.exit_code), expected=expected)
