"""What two runs were made of and made on, compared field by field.

A run may have been continued on another machine, so a fact has as many values as a run's launches and nodes had; two
runs agree in it if these are the same values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.completion.launches import launch_entries, leaves
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.rundir.completion_marker import CompletionMarker, LaunchEntry
    from explicit_learning.rundir.launches import ImageDigest, Machine
    from explicit_learning.verify.diff.run_files import RunFiles

__all__ = ["FactDifference", "Section", "entries_of", "provenance_sections", "section"]

# The parts of a launch's machine, by the section that shows them.
MACHINE_PARTS = {
    "image": ("/image/",),
    "code": ("/code/",),
    "packages": ("/platform/libraries/",),
    "lock": ("/lock/",),
    "hardware": ("/platform/hardware/", "/platform/gpus"),
    "environment": ("/environment/",),
}
UNKNOWN = ("undeclared",)
Facts = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """A fact in which two runs differ: where, and every value that each run has there, as text."""

    pointer: str
    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Facts of one kind.

    Attributes:
        name: Which.
        same: Pointers of the facts in which both runs agree.
        unknown: Pointers of the digests of images that neither run knows: nothing says that they are the same.
        differences: The others, in order.
    """

    name: str
    same: tuple[str, ...]
    unknown: tuple[str, ...]
    differences: tuple[FactDifference, ...]


def provenance_sections(a: RunFiles, b: RunFiles) -> Iterator[Section]:
    """Yield what the runs' plans name by hash, what their launches ran on, the launches themselves, and the outcome."""
    yield section("inputs", _single(a.manifest.frozen.identities), _single(b.manifest.frozen.identities))
    ours, theirs = (_machine_facts(run) for run in (a, b))
    for name, starts in MACHINE_PARTS.items():
        yield section(name, *(_below(facts, starts) for facts in (ours, theirs)))
    yield section("launches", *(_launch_facts(run) for run in (a, b)))
    yield section("outcome", *(_single(_outcome(run)) for run in (a, b)))


def section(name: str, ours: Facts, theirs: Facts) -> Section:
    """Compare facts; one that a run lacks has no values there."""
    places = list(dict.fromkeys([*ours, *theirs]))
    equal = [place for place in places if ours.get(place) == theirs.get(place)]
    return Section(
        name=name,
        same=tuple(place for place in equal if ours[place] != UNKNOWN),
        unknown=tuple(place for place in equal if ours[place] == UNKNOWN),
        differences=tuple(
            FactDifference(pointer=place, a=ours.get(place, ()), b=theirs.get(place, ()))
            for place in places
            if ours.get(place) != theirs.get(place)
        ),
    )


def entries_of(run: RunFiles) -> tuple[LaunchEntry, ...]:
    """Return a run's launches: where each began and ended."""
    return launch_entries(run.launches, steps=run.steps, measured=0).records


def _single(value: object) -> Facts:
    facts: Facts = {place: (text,) for place, text in leaves(to_json(value))}
    return facts


def _below(facts: Facts, starts: tuple[str, ...]) -> Facts:
    return {place: values for place, values in facts.items() if place.startswith(starts)}


def _machine_facts(run: RunFiles) -> Facts:
    """Return the distinct values that a run's launches and nodes have in each place, sorted."""
    found: dict[str, set[str]] = {}
    for machine in (node for launch in run.launches for node in launch.start.nodes):
        for place, text in leaves(_machine(machine)):
            found.setdefault(place, set()).add(text)
    return {place: tuple(sorted(values)) for place, values in sorted(found.items())}


def _machine(machine: Machine) -> dict[str, Any]:
    """Return a machine whose image digests each say in one text how they are known."""
    plain: dict[str, Any] = to_json(machine)
    plain["image"]["digests"] = {kind: _digest(found) for kind, found in machine.image.digests.items()}
    return plain


def _digest(found: ImageDigest) -> str:
    return found.known_by if found.value is None else f"{found.value} ({found.known_by})"


def _launch_facts(run: RunFiles) -> Facts:
    return {f"/{number}": (_launch_text(entry),) for number, entry in enumerate(entries_of(run))}


def _launch_text(entry: LaunchEntry) -> str:
    """Return a launch in words, without its random name."""
    start = f"from {entry.checkpoint}" if entry.checkpoint else "from the seed"
    end = "without an end record" if entry.exit_code is None else f"exit code {entry.exit_code}"
    nodes = "1 node" if len(entry.machines) == 1 else f"{len(entry.machines)} nodes"
    accepted = "".join(
        f", accepted {each.pointer}: {each.now} instead of {each.before}" for each in entry.accepted_changes
    )
    return f"steps {entry.from_step} to {entry.to_step}, {start}, {nodes}, {end}{accepted}"


def _outcome(run: RunFiles) -> dict[str, Any]:
    """Return how a run ended and what it counted; of an unfinished one only how far it has come."""
    ended: dict[str, Any] = {"status": run.manifest.status, "trained": run.manifest.trained, "steps": run.steps}
    return ended if run.marker is None else ended | _marked(run.marker)


def _marked(marker: CompletionMarker) -> dict[str, Any]:
    identities = marker.identities
    return {
        "initial_adapter_tensors_sha256": identities.initial_adapter_tensors_sha256,
        "final_adapter_tensors_sha256": identities.final_adapter_tensors_sha256,
        "base_weights_sha256": identities.base_weights_sha256,
        "parameters_sha256": marker.parameters.sha256,
        "adapted_modules": marker.parameters.modules,
        "counts": marker.counts,
    }
