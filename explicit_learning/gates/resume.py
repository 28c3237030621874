"""Would a resumed run compute as before?

A resumed run equals an uninterrupted one only on the same libraries and the same kind of hardware, because these choose
the kernels that compute. The gate therefore compares this machine with the one that made the newest checkpoint, as its
launch recorded it. A difference is refused unless it is accepted; then the launch's record holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoints import newest_complete
from explicit_learning.rundir.launches import Change, read_launches, source_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Hardware
    from explicit_learning.rundir.launches import Platform, StartRecord

__all__ = ["LIBRARIES", "change_faults", "changes_of_node", "check_resume", "deciding_changes", "resume_changes"]

FIX = "resume where the run was before, or add --accept-changes: the record then says that the launches differ"
NOT_THERE = "not installed"
CONTEXT = Context(gate="resume", fix=FIX)
LIBRARIES = "/platform/libraries"


def check_resume(
    run: Path, now: Platform, hardware: Hardware, *, node: int = 0, accepted: bool = False
) -> tuple[list[Fault], list[str]]:
    """Return why a run would not compute on this machine as it did up to its newest checkpoint.

    Args:
        run: The run directory; it may be missing.
        now: This machine.
        hardware: What the plan asks for.
        node: This machine's number among the launch's nodes.
        accepted: Whether differences are accepted.

    Returns:
        Faults with exit code 69 for hardware, 78 for libraries, and 65 for a damaged record of a launch; and the
        differences that are accepted, as warnings.
    """
    try:
        changes = resume_changes(run, now, hardware, node=node)
    except Refusal as refusal:
        return list(refusal.faults), []
    if not accepted:
        return change_faults(run, changes), []
    return [], [f"{each.pointer}: accepted: {each.now}, where the run had {each.before}" for each in changes]


def change_faults(run: Path, changes: Sequence[Change]) -> list[Fault]:
    """Return a fault for each of `resume_changes`."""
    return [
        CONTEXT.fault(
            file=run,
            pointer=change.pointer,
            found=change.now,
            expected=f"{change.before}, as in the launch that made the newest checkpoint",
            exit_code=ExitCode.ENVIRONMENT if f"{LIBRARIES}/" in change.pointer else ExitCode.HARDWARE,
        )
        for change in changes
    ]


def resume_changes(run: Path, now: Platform, hardware: Hardware, *, node: int = 0) -> list[Change]:
    """Return what decides numbers and differs between this machine and the one that made the newest checkpoint.

    A node is compared with the node of its number, because ranks keep theirs. A run without a checkpoint starts again
    from its seed: nothing of an earlier launch is kept, nothing is compared.

    Raises:
        Refusal: If a record of a launch is damaged or missing (exit code 65).
    """
    if not run.is_dir():
        return []
    launches, checkpoint = read_launches(run), newest_complete(run)
    if checkpoint is None:
        return []
    source = source_of(launches, layout.step_of(checkpoint) or 0)
    if source is None:
        raise CONTEXT.refusal(
            file=run / layout.LAUNCHES,
            found=f"no record of the launch that made {checkpoint}",
            expected="a record of every launch",
            fix="restore the folder launches/ from a copy, or start the run again in another folder (--out)",
        )
    return changes_of_node(source, now, hardware, node=node)


def changes_of_node(source: StartRecord, now: Platform, hardware: Hardware, *, node: int) -> list[Change]:
    """Return what decides numbers and differs between a machine and the node of its number in an earlier launch."""
    before = source.nodes[node] if node < len(source.nodes) else source.nodes[0]
    return deciding_changes(before.platform, now, hardware)


def deciding_changes(before: Platform, now: Platform, hardware: Hardware) -> list[Change]:
    """Return what decides numbers and is not the same on two machines.

    On a CPU these are its architecture, instruction sets and model: libraries choose their kernels by all three. On
    GPUs it is the GPUs' model. On both it is every library's version.
    """
    old, new = (_deciding(platform, hardware) for platform in (before, now))
    return [
        Change(pointer=pointer, before=was, now=found)
        for pointer in sorted(old.keys() | new.keys())
        if (was := old.get(pointer, NOT_THERE)) != (found := new.get(pointer, NOT_THERE))
    ]


def _deciding(platform: Platform, hardware: Hardware) -> dict[str, str]:
    found, cpu = platform.hardware, platform.hardware["cpu"]
    facts = {f"{LIBRARIES}/{name}": version for name, version in platform.libraries.items()}
    facts["/platform/hardware/cpu/architecture"] = cpu["architecture"]
    if hardware.accelerator == "cuda":
        models = {gpu["name"] for gpu in found["nvidia"]["gpus"] if gpu["uuid"] in platform.gpus}
        facts["/platform/gpus"] = ", ".join(sorted(models)) or "no GPU"
        return facts
    facts["/platform/hardware/cpu/instruction_sets"] = " ".join(cpu["instruction_sets"]) or "none"
    facts["/platform/hardware/cpu/model"] = cpu["model"]
    return facts
