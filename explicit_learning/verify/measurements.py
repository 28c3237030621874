"""The completion rules, applied to what the marker says the ranks measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.completion.rules import broken_measurement_rules
from explicit_learning.errors import Context, found_text
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.completion.recount import RankRecount
    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker
    from explicit_learning.rundir.rank_report import LossTerm, RolloutReport

__all__ = ["REPEATED", "measurement_faults"]

REPEATED = (
    "what only the ranks measured and the marker repeats: base weights before and after, whether all ranks trained the "
    "same parameters, layer functions, forwards, scored tokens, kernel checks and rows left out"
)

CONTEXT = Context(gate="completion", fix="restore the run directory from a copy: its records contradict each other")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What the marker keeps of the first rank's `RankReport`; ``forwards`` are the mean of all ranks, rounded down."""

    rank: int = 0
    optimizer_steps: int
    records: int
    sft_loss_tokens: int | None
    sampled_tokens: int | None
    completions: int | None
    forwards: int
    final_adapter_tensors_sha256: str
    rollouts: RolloutReport | None
    loss_terms: dict[str, LossTerm]


def measurement_faults(
    tree: Tree, plan: Plan, marker: CompletionMarker, recounts: Sequence[RankRecount]
) -> Iterator[Fault]:
    """Yield every rule about measurements that a finished run breaks; `accounting_faults` holds those about its files.

    Args:
        tree: The run's files.
        plan: The plan.
        marker: The completion marker.
        recounts: Each rank's ledger and trace, counted; none in SFT arms.
    """
    file = tree.place(layout.COMPLETION_MARKER)
    sha256 = marker.adapter.tensors_sha256
    for fault in broken_measurement_rules(plan, recounts, [_kept(plan, marker)], adapter_tensors_sha256=sha256):
        yield CONTEXT.fault(file=fault.file or file, pointer=fault.pointer, found=fault.found, expected=fault.expected)
    for name, planned in (
        ("sft_loss_token_ceiling", plan.budget.max_sft_loss_tokens),
        ("sampled_token_ceiling", plan.budget.max_completion_tokens_per_run),
    ):
        if (found := getattr(marker.counts, name)) != planned:
            expected = f"{planned}, as planned"
            yield CONTEXT.fault(file=file, pointer=f"/counts/{name}", found=found_text(found), expected=expected)


def _kept(plan: Plan, marker: CompletionMarker) -> _Kept:
    counts = marker.counts
    return _Kept(
        optimizer_steps=counts.optimizer_steps,
        records=counts.records,
        sft_loss_tokens=counts.sft_loss_tokens,
        sampled_tokens=counts.sampled_tokens,
        completions=counts.completions,
        forwards=marker.compute.forwards // plan.hardware.world_size,
        final_adapter_tensors_sha256=marker.identities.final_adapter_tensors_sha256,
        rollouts=marker.rollouts,
        loss_terms=marker.loss_terms,
    )
