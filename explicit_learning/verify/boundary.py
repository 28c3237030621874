"""Whether a smoke run's boundary holds: whose it is, which launch stopped there, and the state that it describes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explicit_learning.completion.smoke_proof import FIX
from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.tree import tree_document
from explicit_learning.files.typed_json import RESTORE
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.rundir.state_digests import StateDigests
from explicit_learning.verify.contradictions import contradiction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.smoke_boundary import SmokeBoundary
    from explicit_learning.rundir.state_digests import Components
    from explicit_learning.verify.record import RunRecord

__all__ = ["boundary_faults", "stored_components"]

CONTEXT = Context(gate="interruptions", fix=FIX)

_equal = partial(contradiction, CONTEXT)


def boundary_faults(tree: Tree, record: RunRecord, hashes: Mapping[str, str]) -> Iterator[Fault]:
    """Yield everything that is wrong with a smoke run's boundary; nothing for a run that has none.

    Args:
        tree: The run's files.
        record: What was read of its documents.
        hashes: SHA-256 of each file, by name.
    """
    boundary, plan, manifest = record.boundary, record.plan, record.manifest
    if boundary is None or plan is None or manifest is None:
        return
    file = tree.place(layout.SMOKE_BOUNDARY)
    if plan.run_mode != "smoke":
        yield CONTEXT.fault(file=file, found="the boundary of a smoke run", expected="no such file in a main run")
    named = {
        "run_id": plan.run_id,
        "frozen_config_sha256": plan.frozen_config_sha256,
        "run_manifest_sha256": manifest.run_manifest_sha256,
        "plan_sha256": hashes.get(layout.PLAN),
        "checkpoint": layout.checkpoint_name(SMOKE_STOP_STEP),
    }
    for field, expected in named.items():
        yield from _equal(file, f"/{field}", getattr(boundary, field), expected, "as of this run")
    yield from _launch(file, boundary, record)
    ranks = [rank.rank for rank in boundary.ranks]
    yield from _equal(file, "/ranks", ranks, list(range(plan.hardware.world_size)), "the ranks that are planned")
    for number, rank in enumerate(boundary.ranks):
        stored = stored_components(tree, boundary.checkpoint, rank.rank)
        if stored is not None:
            source = f"as in {boundary.checkpoint}/{layout.state_digests_file(rank.rank)}"
            yield from _equal(file, f"/ranks/{number}/components", rank.components, stored, source)


def stored_components(tree: Tree, checkpoint: str, rank: int) -> Components | None:
    """Return the digests that a checkpoint holds of a rank; ``None`` if it has none, or they cannot be read."""
    name = f"{checkpoint}/{layout.state_digests_file(rank)}"
    if name not in tree.files:
        return None
    try:
        return tree_document(tree, name, StateDigests, gate=CONTEXT.gate, fix=RESTORE).components
    except Refusal:
        return None  # the reading of the record has said so


def _launch(file: str, boundary: SmokeBoundary, record: RunRecord) -> Iterator[Fault]:
    """The launch that stopped at the boundary began before it; of a complete run it is the last one that did."""
    before = [launch.start.launch_id for launch in record.launches if launch.start.step < SMOKE_STOP_STEP]
    allowed = before if record.marker is None else before[-1:]
    if record.launches and boundary.launch_id not in allowed:
        expected = f"the launch that stopped there: {' or '.join(allowed) or 'none did'}"
        found = found_text(boundary.launch_id)
        yield CONTEXT.fault(file=file, pointer="/launch_id", found=found, expected=expected)
