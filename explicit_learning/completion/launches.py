"""The records of a run's launches: written as ranks start and end, compared for people, and put into the marker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import FOUND_LIMIT, beginning_of, found_text
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.progress import say
from explicit_learning.files.schema import pointer
from explicit_learning.files.typed_json import to_json
from explicit_learning.gates.resume import changes_of_node, deciding_changes
from explicit_learning.rundir.completion_marker import Difference, LaunchEntry, Launches
from explicit_learning.rundir.launches import (
    Change,
    EndRecord,
    RankEnd,
    StartRecord,
    read_launches,
    source_of,
    write_end,
    write_start,
)
from explicit_learning.rundir.layout import launch_start_file, step_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from explicit_learning.errors import ExitCode, Fault
    from explicit_learning.plan.typed_plan import Hardware
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.launches import Launch, Machine
    from explicit_learning.rundir.outcome import RankOutcome
    from explicit_learning.rundir.rank_report import RankGpu

__all__ = [
    "accepted_changes",
    "differences",
    "launch_entries",
    "leaves",
    "machines_of",
    "node_changes",
    "other_gpus",
    "record_end",
    "record_start",
    "shortened",
]

SHOWN = 12


def record_start(manifest: LaunchManifest, others: Sequence[Machine] = ()) -> None:
    """Record a launch whose ranks are about to start, and say what differs from the launch before.

    Args:
        manifest: The launch manifest.
        others: The machines that follow node 0, in order.

    Raises:
        Refusal: If an earlier record is damaged or missing (exit code 65).
        OSError: If the record cannot be written.
    """
    run, machine = manifest.run, manifest.machine
    earlier, step = read_launches(run), step_of(manifest.resume_checkpoint or "") or 0
    write_start(
        run,
        StartRecord(
            launch_id=manifest.launch_id,
            number=len(earlier),
            previous_sha256=earlier[-1].start_sha256 if earlier else None,
            previous_end_sha256=earlier[-1].end_sha256 if earlier else None,
            run_manifest_sha256=manifest.run_manifest_sha256,
            checkpoint=manifest.resume_checkpoint,
            step=step,
            nodes=(machine, *others),
            accepted_changes=accepted_changes((machine, *others), manifest.plan.hardware, source_of(earlier, step)),
        ),
    )
    if earlier:
        what, before = "this launch differs from the one before", earlier[-1].start.nodes[0]
        _say_differences(what, before, machine, there="was", deciding=_deciding(manifest, before, machine))
    for rank, other in enumerate(others, 1):
        what = f"node {rank} differs from node 0"
        _say_differences(what, machine, other, there="node 0 has", deciding=_deciding(manifest, machine, other))


def accepted_changes(nodes: Sequence[Machine], hardware: Hardware, source: StartRecord | None) -> tuple[Change, ...]:
    """Return what decides numbers and differs in a launch: it was accepted, for it would have been refused otherwise.

    Args:
        nodes: The launch's machines, by node.
        hardware: What the plan asks for.
        source: The launch that made the checkpoint which this one continues; ``None`` if there is none.
    """
    changes = list[Change]()
    for rank, node in enumerate(nodes):
        if source is not None:
            found = changes_of_node(source, node.platform, hardware, node=rank)
            changes += [replace(each, pointer=f"/nodes/{rank}{each.pointer}") for each in found]
        if rank:
            changes += _node_changes(nodes[0], node, hardware, rank)
    return tuple(dict.fromkeys(changes))


def node_changes(manifest: LaunchManifest, other: Machine, rank: int) -> list[Change]:
    """Return what decides numbers and is not the same on node 0 and another node; pointers name the node."""
    return _node_changes(manifest.machine, other, manifest.plan.hardware, rank)


def _node_changes(first: Machine, other: Machine, hardware: Hardware, rank: int) -> list[Change]:
    found = deciding_changes(first.platform, other.platform, hardware)
    return [Change(pointer=f"/nodes/{rank}{each.pointer}", before=each.before, now=each.now) for each in found]


def _deciding(manifest: LaunchManifest, before: Machine, now: Machine) -> list[Change]:
    return deciding_changes(before.platform, now.platform, manifest.plan.hardware)


def record_end(
    run: Path, launch_id: str, code: ExitCode, outcomes: Sequence[RankOutcome], faults: Sequence[Fault]
) -> None:
    """Record the end of a launch; one that started no rank has no record, and gets none.

    Args:
        run: The run directory.
        launch_id: Random name of the launch.
        code: The program's exit code.
        outcomes: Each rank's outcome, by rank.
        faults: What kept a run whose ranks reached the last step from being complete.

    Raises:
        Refusal: If it breaks its schema (exit code 70).
        OSError: If it cannot be written.
    """
    start = run / launch_start_file(launch_id)
    if not start.exists():
        return
    ranks = tuple(
        RankEnd(
            rank=rank,
            status=outcome.status,
            optimizer_step=outcome.optimizer_step,
            checkpoint=outcome.checkpoint,
            message=outcome.message,
            peak_memory_bytes=outcome.peak_memory_bytes,
            peak_reserved_bytes=outcome.peak_reserved_bytes,
            device_seconds=outcome.device_seconds,
            gpu=outcome.gpu,
            phases=outcome.phases,
        )
        for rank, outcome in enumerate(outcomes)
    )
    record = EndRecord(
        launch_id=launch_id,
        start_sha256=sha256_file(start),
        exit_code=int(code),
        ranks=ranks,
        faults=tuple(fault.to_json() for fault in faults),
    )
    write_end(run, record)


def machines_of(launches: Sequence[Launch]) -> tuple[Machine, ...]:
    """Return every machine of a run's launches, equal ones once, in the order in which they were first used."""
    machines: list[Machine] = []
    for node in (node for launch in launches for node in launch.start.nodes):
        if node not in machines:
            machines.append(node)
    return tuple(machines)


def launch_entries(launches: Sequence[Launch], *, steps: int, measured: int) -> Launches:
    """Return the marker's part about launches.

    Args:
        launches: All launches, the one that writes the marker last.
        steps: The run's steps.
        measured: Launches that reported their memory and time.
    """
    machines = machines_of(launches)
    begun = [*(launch.start.step for launch in launches[1:]), steps]
    ends = [max(launch.start.step, min(begun[number:])) for number, launch in enumerate(launches)]
    return Launches(
        records=tuple(
            LaunchEntry(
                launch_id=launch.start.launch_id,
                start_sha256=launch.start_sha256,
                end_sha256=launch.end_sha256,
                checkpoint=launch.start.checkpoint,
                from_step=launch.start.step,
                to_step=end,
                exit_code=launch.end.exit_code if launch.end else None,
                machines=tuple(machines.index(node) for node in launch.start.nodes),
                accepted_changes=launch.start.accepted_changes,
            )
            for launch, end in zip(launches, ends, strict=True)
        ),
        measured=measured,
    )


def other_gpus(launch: Launch, used: Sequence[RankGpu | None]) -> list[str]:
    """Return which ranks computed on another GPU than their launch recorded, in words.

    Args:
        launch: The launch.
        used: Each rank's GPU, by rank; ``None`` on a CPU.
    """
    recorded = [uuid for node in launch.start.nodes for uuid in node.platform.gpus]
    found = [gpu.uuid for gpu in used if gpu is not None]
    if len(recorded) != len(found):
        return [f"{len(found)} GPUs were used, {len(recorded)} recorded"] if recorded or found else []
    pairs = enumerate(zip(found, recorded, strict=True))
    return [f"rank {rank} used {uuid}, recorded is {planned}" for rank, (uuid, planned) in pairs if uuid != planned]


def differences(machines: Sequence[Machine]) -> tuple[Difference, ...]:
    """Return what is not the same on all machines: each place, with what every machine has there, in order."""
    held = [dict(leaves(to_json(machine))) for machine in machines]
    places = sorted({place for each in held for place in each})
    found = ((place, tuple(each.get(place, "not there") for each in held)) for place in places)
    return tuple(Difference(pointer=place, values=values) for place, values in found if len(set(values)) > 1)


def _say_differences(what: str, before: Machine, now: Machine, *, there: str, deciding: Iterable[Change]) -> None:
    """Say what differs; what decides numbers comes first and is never left out."""
    first = {change.pointer for change in deciding}
    found = sorted(differences((before, now)), key=lambda each: each.pointer not in first)
    shown = max(SHOWN, len(first))
    for each in found[:shown]:
        note = " (this decides numbers)" if each.pointer in first else ""
        old, new = map(shortened, each.values)
        say(f"{what}: {each.pointer} is {new}, {there} {old}{note}")
    if len(found) > shown:
        say(f"{what} in {len(found) - shown} more places")


def shortened(text: str) -> str:
    """Return a value as a line can show it: without control characters, and no longer than a fault shows."""
    return beginning_of(escaped(text), FOUND_LIMIT)


def leaves(value: Any, parts: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any JSON value
    """Yield the JSON pointer and the text of every leaf of a document; a list without objects in it is one leaf."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*parts, name))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from leaves(item, (*parts, str(number)))
    elif isinstance(value, list):
        yield pointer(parts), " ".join(map(str, value)) or "none"
    else:
        yield pointer(parts), value if isinstance(value, str) else found_text(value)
