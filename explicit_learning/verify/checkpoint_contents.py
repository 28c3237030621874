"""What checkpoints hold, against each other, the plan and the marker.

Ranks write digests of their live state into each checkpoint, the trainer its log, and each rank its counters. The
marker tells the same of the run's end. The digests of adapters and counters can be computed again without torch.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, Refusal
from explicit_learning.files.tree import tree_document, tree_json
from explicit_learning.files.typed_json import RESTORE
from explicit_learning.model_files.tensors import tensors_sha256
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoint_files import has_reference
from explicit_learning.rundir.counters import StoredCounters, counters_sha256
from explicit_learning.rundir.state_digests import StateDigests
from explicit_learning.verify.adapter_files import (
    configuration_faults,
    read_tensors,
    saved_tensors,
    tensor_differences,
    trained_tensors,
)
from explicit_learning.verify.contradictions import contradiction
from explicit_learning.verify.record import checkpoints_of
from explicit_learning.verify.torch_files import torch_file_faults
from explicit_learning.verify.trainer_state import continued_log_faults, trainer_state_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.checkpoint_mark import CheckpointMark
    from explicit_learning.rundir.completion_marker import CompletionMarker

__all__ = ["checkpoint_faults"]

CONTEXT = Context(gate="checkpoints", fix="restore the run directory from a copy: its records contradict each other")

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
    if marker is not None:
        yield from _complete(tree, plan)
    folders = [folder for folder in marks if f"{folder}/{layout.TRAINER_STATE}" in tree.files]
    for folder, mark in marks.items():
        parts: list[Callable[[], Iterable[Fault]]] = [
            partial(_adapters_and_state, tree, folder, mark.step, plan, marker),
        ]
        if folder in folders:
            parts.append(partial(trainer_state_faults, tree, folder, mark.step, plan, marker))
        for part in parts:
            yield from _tried(part)
        yield from torch_file_faults(tree, folder, plan)
    for before, folder in pairwise(folders):
        yield from _tried(partial(continued_log_faults, tree, folder, before))


def _tried(part: Callable[[], Iterable[Fault]]) -> Iterator[Fault]:
    """Yield the faults of a part; what it cannot read ends it."""
    try:
        yield from part()
    except Refusal as refusal:
        yield from refusal.faults


def _complete(tree: Tree, plan: Plan) -> Iterator[Fault]:
    """A complete run has the checkpoint of its last step, and no half-written one."""
    for folder in checkpoints_of(tree):
        if (mark := f"{folder}/{layout.CHECKPOINT_MARK}") not in tree.files:
            expected = f"the mark: a launch moves a half-written checkpoint into {layout.SET_ASIDE}/ before it goes on"
            yield CONTEXT.fault(file=tree.place(mark), found="no such file", expected=expected)
    last = layout.checkpoint_name(plan.optimisation.max_steps)
    if not any(name.startswith(f"{last}/") for name in tree.files):
        expected = "the checkpoint of the last step, which every complete run has"
        yield CONTEXT.fault(file=tree.place(last), found="no such folder", expected=expected)


def _adapters_and_state(
    tree: Tree, folder: str, step: int, plan: Plan, marker: CompletionMarker | None
) -> Iterator[Fault]:
    """Adapters are those of the plan, and the digests of each rank's live state are those of the files beside them."""
    known = yield from _adapters(tree, folder, plan, marker)
    if marker is not None:
        known["base_weights"] = marker.identities.base_weights_sha256, f"as in {layout.COMPLETION_MARKER}"
    for rank in range(plan.hardware.world_size):
        if f"{folder}/{layout.state_digests_file(rank)}" in tree.files:
            yield from _state(tree, folder, step, rank, known | _counters(tree, folder, step, rank, plan))


def _adapters(
    tree: Tree, folder: str, plan: Plan, marker: CompletionMarker | None
) -> Generator[Fault, None, dict[str, tuple[str | None, str]]]:
    """Yield what is wrong with the adapters of a checkpoint; return their digests, by the component that they are."""
    digests: dict[str, tuple[str | None, str]] = {}
    places = {"policy_adapter": folder}
    if has_reference(plan.objective):
        places["reference_adapter"] = f"{folder}/{layout.REFERENCE_ADAPTER}"
    else:
        digests["reference_adapter"] = None, "as the plan's objective has no reference"
    for component, place in places.items():
        yield from configuration_faults(tree, place, plan, marker, CONTEXT)
        yield from _same_configuration(tree, place)
        name = f"{place}/{layout.ADAPTER_WEIGHTS}"
        if (tensors := (yield from read_tensors(tree, name, CONTEXT))) is None:
            continue
        digests[component] = tensors_sha256(tensors), f"the digest of the tensors in {name}"
        if marker is not None and (different := tensor_differences(saved_tensors(tensors), trained_tensors(marker))):
            found, expected = different
            source = f"{expected} of parameters in {layout.COMPLETION_MARKER}"
            yield CONTEXT.fault(file=tree.place(name), found=found, expected=source)
    return digests


def _same_configuration(tree: Tree, folder: str) -> Iterator[Fault]:
    """An adapter's configuration is that of the final adapter: one process wrote both from the same settings."""
    name, final = (f"{place}/{layout.ADAPTER_CONFIG}" for place in (folder, layout.FINAL_ADAPTER))
    if name not in tree.files or final not in tree.files:
        return
    own, right = (tree_json(tree, each, gate=CONTEXT.gate, fix=CONTEXT.fix) for each in (name, final))
    if isinstance(own, dict) and isinstance(right, dict):
        for field in sorted(own.keys() | right.keys()):
            yield from _different(tree.place(name), f"/{field}", own.get(field), right.get(field), f"as in {final}")


def _counters(tree: Tree, folder: str, step: int, rank: int, plan: Plan) -> dict[str, tuple[str | None, str]]:
    """Return the digest of a rank's counters; nothing if they cannot be read, which the reading of the record says."""
    name = f"{folder}/{layout.counters_file(rank)}"
    try:
        counters = tree_document(tree, name, StoredCounters, gate=CONTEXT.gate, fix=RESTORE)
    except Refusal:
        return {}
    return {"counters": (counters_sha256(counters, plan, step=step), f"the digest of the counters in {name}")}


def _state(
    tree: Tree, folder: str, step: int, rank: int, known: Mapping[str, tuple[str | None, str]]
) -> Iterator[Fault]:
    """The digests of a rank's live state are those that can be computed again."""
    name = f"{folder}/{layout.state_digests_file(rank)}"
    try:
        digests = tree_document(tree, name, StateDigests, gate=CONTEXT.gate, fix=RESTORE)
    except Refusal:
        return  # the reading of the record has said so
    file = tree.place(name)
    yield from _different(file, "/rank", digests.rank, rank, "the rank of its name")
    yield from _different(file, "/step", digests.step, step, "the step of its checkpoint")
    for component, (sha256, source) in known.items():
        yield from _different(file, f"/components/{component}", digests.components.get(component), sha256, source)
