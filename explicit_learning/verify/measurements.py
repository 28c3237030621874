"""The completion rules, applied to what the marker says the ranks measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.completion.rules import broken_measurement_rules
from explicit_learning.errors import Context, found_text
from explicit_learning.rundir import layout
from explicit_learning.rundir.rank_report import RankReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.completion.recount import RankRecount
    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker

__all__ = ["measurement_faults"]

CONTEXT = Context(gate="completion", fix="restore the run directory from a copy: its records contradict each other")


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
    for fault in broken_measurement_rules(plan, recounts, _reports(plan, marker), adapter_tensors_sha256=sha256):
        yield CONTEXT.fault(file=fault.file or file, pointer=fault.pointer, found=fault.found, expected=fault.expected)
    for name, planned in (
        ("sft_loss_token_ceiling", plan.budget.max_sft_loss_tokens),
        ("sampled_token_ceiling", plan.budget.max_completion_tokens_per_run),
    ):
        if (found := getattr(marker.counts, name)) != planned:
            expected = f"{planned}, as planned"
            yield CONTEXT.fault(file=file, pointer=f"/counts/{name}", found=found_text(found), expected=expected)


def _reports(plan: Plan, marker: CompletionMarker) -> list[RankReport]:
    """Return what the ranks reported, as far as the marker keeps it: the first rank's measurements stand for all."""
    world, counts, own = plan.hardware.world_size, marker.counts, marker.identities
    return [
        RankReport(
            rank=rank,
            world_size=world,
            optimizer_steps=counts.optimizer_steps,
            records=counts.records,
            records_left_out=counts.records_left_out,
            sft_loss_tokens=counts.sft_loss_tokens,
            sampled_tokens=counts.sampled_tokens,
            completions=counts.completions,
            forwards=marker.compute.forwards // world,
            sampling_forwards=marker.compute.sampling_forwards,
            scored_tokens=marker.compute.scored_tokens,
            trainable_parameters=marker.parameters.tensors,
            initial_adapter_tensors_sha256=own.initial_adapter_tensors_sha256,
            final_adapter_tensors_sha256=own.final_adapter_tensors_sha256,
            base_weights_before_sha256=own.base_weights_sha256,
            base_weights_after_sha256=own.base_weights_sha256,
            peak_memory_bytes=max(marker.memory.peak_bytes_by_rank, default=0),
            peak_reserved_bytes=None,
            device_seconds=marker.compute.device_seconds,
            gpu=None,
            unchanged_adapter_steps=marker.unchanged_adapter_steps,
            zero_gradient_steps=marker.zero_gradient_steps,
            sampler_agreement=marker.sampler_agreement,
            rollouts=marker.rollouts,
            kernel_checks=marker.kernel_checks,
            layer_functions=marker.layer_functions,
            loss_terms=marker.loss_terms,
            log_history=marker.log_history,
        )
        for rank in range(world)
    ]
