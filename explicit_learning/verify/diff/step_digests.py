"""Digests of what a run computed for each step: a smoke run's comparison of outputs holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.typed_json import to_json
from explicit_learning.verify.diff.rows import metrics_rows, trace_rows

if TYPE_CHECKING:
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["StepDigests", "sampling_ranks", "step_digests"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDigests:
    """SHA-256 of what one step computed; ``None`` where it has none.

    Attributes:
        trace: Of the rows of all ranks' traces that were sampled for it, by rank, without what they belong to (run,
            arm, plan and commit).
        metrics: Of its row of metrics, in a list.
    """

    trace: str | None
    metrics: str | None


def sampling_ranks(plan: Plan) -> range:
    """Return the ranks that have a trace: none in SFT arms."""
    return range(plan.hardware.world_size if plan.samples else 0)


def step_digests(tree: Tree, plan: Plan) -> dict[int, StepDigests]:
    """Return the digests of every planned step, by the step, from 1.

    Raises:
        Refusal: If a trace or the metrics are missing, unreadable or damaged.
    """
    sampled, metrics = dict[int, list[dict[str, Any]]](), {row.step: [row.values] for row in metrics_rows(tree)}
    for rank in sampling_ranks(plan):
        for row in trace_rows(tree, plan, rank):
            sampled.setdefault(row.step, []).append(to_json(row.values))
    return {
        step: StepDigests(trace=_digest(sampled.get(step)), metrics=_digest(metrics.get(step)))
        for step in range(1, plan.optimisation.max_steps + 1)
    }


def _digest(rows: list[dict[str, Any]] | None) -> str | None:
    return None if rows is None else sha256_json(rows)
