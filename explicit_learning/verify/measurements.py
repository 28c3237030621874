"""The completion rules, applied to what the marker says the ranks measured and to the recounted ledgers and traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.completion.marker import sampled_counts
from explicit_learning.completion.rules import broken_completion_rules
from explicit_learning.errors import Context, found_text
from explicit_learning.files.typed_json import to_json
from explicit_learning.rundir import layout
from explicit_learning.rundir.rank_report import RankReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.accounting.set_aside import Discarded
    from explicit_learning.completion.recount import RankRecount
    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker

__all__ = ["measurement_faults"]

CONTEXT = Context(gate="completion", fix="restore the run directory from a copy: its records contradict each other")


def measurement_faults(
    tree: Tree, plan: Plan, marker: CompletionMarker, recounts: Sequence[RankRecount], lost: Discarded
) -> Iterator[Fault]:
    """Yield every completion rule that a finished run breaks, and every count of its marker that is another.

    Args:
        tree: The run's files.
        plan: The plan.
        marker: The completion marker.
        recounts: Each rank's ledger and trace, counted; none in SFT arms.
        lost: What was set aside.
    """
    file = tree.place(layout.COMPLETION_MARKER)
    sha256 = marker.adapter.tensors_sha256
    for fault in broken_completion_rules(plan, recounts, _reports(plan, marker), adapter_tensors_sha256=sha256):
        yield CONTEXT.fault(file=fault.file or file, pointer=fault.pointer, found=fault.found, expected=fault.expected)
    counts = to_json(marker.counts)
    expected = sampled_counts(recounts, lost) | {
        "sft_loss_token_ceiling": plan.budget.max_sft_loss_tokens,
        "sampled_token_ceiling": plan.budget.max_completion_tokens_per_run,
    }
    for name, value in expected.items():
        if counts[name] != (right := to_json(value)):
            text = f"{found_text(right)}, counted again from the run's files"
            yield CONTEXT.fault(file=file, pointer=f"/counts/{name}", found=found_text(counts[name]), expected=text)
    for recount, found in zip(recounts, marker.accounting, strict=False):
        if found != recount.frontiers:
            text = f"{found_text(to_json(recount.frontiers))}, the ends of the files"
            pointer = f"/accounting/{recount.rank}"
            yield CONTEXT.fault(file=file, pointer=pointer, found=found_text(to_json(found)), expected=text)
    if len(marker.accounting) != len(recounts):
        ranks = f"{len(marker.accounting)} ranks"
        yield CONTEXT.fault(file=file, pointer="/accounting", found=ranks, expected=f"{len(recounts)} ranks")


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
