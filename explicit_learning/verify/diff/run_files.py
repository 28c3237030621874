"""A run's documents, as the readers of two runs need them; complete or not."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Refusal
from explicit_learning.files.tree import tree_bytes, tree_document
from explicit_learning.files.typed_json import RESTORE
from explicit_learning.plan.reading import plan_of_bytes
from explicit_learning.rundir import layout
from explicit_learning.rundir.completion_marker import CompletionMarker
from explicit_learning.rundir.launches import launches_of
from explicit_learning.rundir.run_manifest import run_manifest_of
from explicit_learning.verify.diff.rows import GATE, metrics_rows
from explicit_learning.verify.record import checkpoints_of

if TYPE_CHECKING:
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.launches import Launch
    from explicit_learning.rundir.run_manifest import RunManifest

__all__ = ["RunFiles", "read_run_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """A run.

    Attributes:
        tree: Its files.
        plan: Its plan.
        plan_document: The plan as JSON.
        manifest: Its run manifest.
        launches: Its launches, in order.
        marker: Its completion marker; ``None`` until it is complete.
        checkpoints: Steps of its complete checkpoints, in order.
        steps: Optimizer steps up to which it has metrics or a checkpoint.
    """

    tree: Tree
    plan: Plan
    plan_document: dict[str, Any]
    manifest: RunManifest
    launches: tuple[Launch, ...]
    marker: CompletionMarker | None
    checkpoints: tuple[int, ...]
    steps: int

    @property
    def torn_end(self) -> bool:
        """Whether a kill may have torn the last row of a file: the next launch would cut it off."""
        return self.marker is None

    @property
    def has_metrics(self) -> bool:
        """Whether it logged a step, or should have."""
        return self.marker is not None or layout.METRICS in self.tree.files


def read_run_files(tree: Tree) -> RunFiles:
    """Return a run's documents.

    Raises:
        Refusal: If one is missing, unreadable or damaged (exit code 65), or the folder is not a run directory.
        OSError: If a record of a launch cannot be read.
    """
    manifest = run_manifest_of(tree)
    plan = plan_of_bytes(tree_bytes(tree, layout.PLAN, gate=GATE, fix=RESTORE), Path(tree.place(layout.PLAN)))
    if plan.plan is None:
        raise Refusal(plan.faults)
    marker = None
    if manifest.completion is not None or layout.COMPLETION_MARKER in tree.files:
        marker = tree_document(tree, layout.COMPLETION_MARKER, CompletionMarker, gate=GATE, fix=RESTORE)
    checkpoints = tuple(_checkpoints(tree))
    return RunFiles(
        tree=tree,
        plan=plan.plan,
        plan_document=plan.raw,
        manifest=manifest,
        launches=launches_of(tree),
        marker=marker,
        checkpoints=checkpoints,
        steps=marker.counts.optimizer_steps if marker else max([*checkpoints, _logged_steps(tree)], default=0),
    )


def _checkpoints(tree: Tree) -> list[int]:
    """Return the steps of the complete checkpoints, in order."""
    complete = (name for name in checkpoints_of(tree) if f"{name}/{layout.CHECKPOINT_MARK}" in tree.files)
    return [step for name in complete if (step := layout.step_of(name)) is not None]


def _logged_steps(tree: Tree) -> int:
    """Return the last step with metrics before a damaged row; whoever reads the rows finds the damage."""
    steps = 0
    if layout.METRICS in tree.files:
        with suppress(Refusal):
            for row in metrics_rows(tree, torn_end=True):
                steps = row.step
    return steps
