"""What checkpoints hold, against each other and against the marker.

Ranks write digests of their live state into each checkpoint, the trainer its log, and each rank its counters. The
marker tells the same of the run's end, and the adapter of a checkpoint can be digested without torch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, Refusal
from explicit_learning.files.tree import tree_document, tree_json
from explicit_learning.files.typed_json import RESTORE
from explicit_learning.model_files.tensors import tensors_sha256, tree_tensors
from explicit_learning.rundir import layout
from explicit_learning.rundir.state_digests import StateDigests
from explicit_learning.verify.contradictions import contradiction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.checkpoint_mark import CheckpointMark
    from explicit_learning.rundir.completion_marker import CompletionMarker

__all__ = ["checkpoint_faults"]

CONTEXT = Context(gate="checkpoints", fix="restore the run directory from a copy: its records contradict each other")
# Counters that the marker tells as they are on rank 0, and those that it tells added up over ranks, by its groups.
OF_FIRST_RANK = ("unchanged_adapter_steps", "zero_gradient_steps")
ADDED_UP = {
    "counts": {"records": "records", "sft_loss_tokens": "loss_tokens"},
    "compute": {name: name for name in ("forwards", "sampling_forwards", "scored_tokens")},
}

_different = partial(contradiction, CONTEXT)


def checkpoint_faults(
    tree: Tree, plan: Plan, marks: Mapping[str, CheckpointMark], marker: CompletionMarker | None
) -> Iterator[Fault]:
    """Yield every contradiction in complete checkpoints, and between them and the marker.

    Args:
        tree: The run's files.
        plan: The plan.
        marks: The marks of complete checkpoints, by the checkpoints' names.
        marker: The completion marker; ``None`` for a run that is not complete.
    """
    for folder, mark in marks.items():
        for rank in range(plan.hardware.world_size):
            yield from _state(tree, folder, mark.step, rank, marker)
        if marker is not None:
            yield from _log(tree, folder, mark.step, marker)
            if mark.step == marker.counts.optimizer_steps:
                yield from _counters(tree, folder, plan, marker)


def _state(tree: Tree, folder: str, step: int, rank: int, marker: CompletionMarker | None) -> Iterator[Fault]:
    """The digests of a rank's live state are those of the adapters beside them, and of the run's base weights."""
    name = f"{folder}/{layout.state_digests_file(rank)}"
    if name not in tree.files:
        return
    try:
        digests = tree_document(tree, name, StateDigests, gate=CONTEXT.gate, fix=RESTORE)
        expected = dict(_adapters(tree, folder))
    except Refusal:
        return  # the reading of the record has said so
    file = tree.place(name)
    yield from _different(file, "/rank", digests.rank, rank, "the rank of its name")
    yield from _different(file, "/step", digests.step, step, "the step of its checkpoint")
    if marker is not None:
        expected["base_weights"] = marker.identities.base_weights_sha256, f"as in {layout.COMPLETION_MARKER}"
    for component, (sha256, source) in expected.items():
        yield from _different(file, f"/components/{component}", digests.components.get(component), sha256, source)


def _adapters(tree: Tree, folder: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the digests of the adapters in a checkpoint, by the component that they are.

    Raises:
        Refusal: If an adapter cannot be read.
    """
    own, reference = layout.ADAPTER_WEIGHTS, f"{layout.REFERENCE_ADAPTER}/{layout.ADAPTER_WEIGHTS}"
    for component, file in (("policy_adapter", own), ("reference_adapter", reference)):
        if (name := f"{folder}/{file}") in tree.files:
            yield component, (tensors_sha256(tree_tensors(tree, name)), f"the digest of the tensors in {name}")


def _log(tree: Tree, folder: str, step: int, marker: CompletionMarker) -> Iterator[Fault]:
    """The trainer's log in a checkpoint has the values of the marker's log, up to the checkpoint's step."""
    name = f"{folder}/{layout.TRAINER_STATE}"
    if (state := _document(tree, name)) is None:
        return
    found = {row.get("step"): row for row in state.get("log_history", ()) if isinstance(row, dict) and "loss" in row}
    for number, row in enumerate(marker.log_history):
        if row["step"] > step:
            continue
        own = found.get(row["step"])
        source = f"as log_history in {layout.COMPLETION_MARKER} says"
        pointer = f"/log_history/{number}"
        if own is None:
            yield from _different(tree.place(name), pointer, None, row, source)
            continue
        for metric, value in row.items():
            if value is not None:  # which stands for every value that is not finite
                yield from _different(tree.place(name), f"{pointer}/{metric}", own.get(metric), value, source)


def _counters(tree: Tree, folder: str, plan: Plan, marker: CompletionMarker) -> Iterator[Fault]:
    """The marker tells what the ranks had counted at the last checkpoint, if that is the run's end."""
    names = [f"{folder}/{layout.counters_file(rank)}" for rank in range(plan.hardware.world_size)]
    counters = [
        value["loop"] for name in names if (value := _document(tree, name)) and isinstance(value.get("loop"), dict)
    ]
    if len(counters) < len(names):
        return
    file, source = tree.place(layout.COMPLETION_MARKER), f"as the counters in {folder} say"
    for name in OF_FIRST_RANK:
        told = counters[0].get(name)
        yield from _different(file, f"/{name}", list(getattr(marker, name)), told, source)
    for group, fields in ADDED_UP.items():
        for name, counter in fields.items():
            told = getattr(getattr(marker, group), name)
            values = [each.get(counter) for each in counters]
            if told is not None and all(type(value) is int for value in values):
                yield from _different(file, f"/{group}/{name}", told, sum(values), source)


def _document(tree: Tree, name: str) -> dict[str, Any] | None:
    """Return a JSON object; ``None`` if it is missing, or cannot be read, which the reading of the record has said."""
    if name not in tree.files:
        return None
    try:
        value = tree_json(tree, name, gate=CONTEXT.gate)
    except Refusal:
        return None
    return value if isinstance(value, dict) else None
