"""Will a rank fit into its GPU's memory?

Running out of memory costs the hours until it happens, and says nothing about the plan. So what a rank takes is
estimated (`explicit_learning.gates.memory_estimate`). If what every run of the plan takes does not fit, the plan is
refused; if what it takes with rows as long as planned comes near the memory, there is a warning. Where vLLM samples,
its share must leave room for engine and trainer, on the GPU that is here or on one of the size that the plan asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.gates.machine import available_memory_bytes
from explicit_learning.gates.memory_estimate import estimate_memory
from explicit_learning.gates.nvml import Inventory
from explicit_learning.gates.sizes import GIB, memory_size
from explicit_learning.gates.visible import visible_devices
from explicit_learning.gates.vllm_memory import ENGINE, share_faults
from explicit_learning.plan.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.gates.memory_estimate import MemoryEstimate, Moment, MomentName
    from explicit_learning.gates.nvml import NvmlUnavailable
    from explicit_learning.gates.row_sizes import RowSizes
    from explicit_learning.plan.typed_plan import Hardware, Plan

__all__ = ["MemoryLimit", "RankMemory", "check_memory", "memory_limit", "memory_text", "rank_memory"]

CONTEXT = Context(gate="memory", exit_code=ExitCode.HARDWARE)
# Share of the memory from which on a plan is near it: an estimate is not exact, and the allocator leaves gaps.
NEAR = 0.9
# The field of a plan that a moment's memory depends on most.
POINTERS: dict[MomentName, str] = {
    "a backward pass": "/optimisation/per_device_batch_size",
    "sampling": "/optimisation/per_device_batch_size",
    "an optimizer step": "/lora/rank",
    "evaluation": "/generation/evaluation_batch_size",
    "validation": "/generation/evaluation_batch_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The memory that ranks have.

    Attributes:
        total_bytes: Its size.
        ranks: Ranks that share it.
        name: What it is, for messages.
        certain: Whether ranks that need more cannot run: of a GPU that is here. A planned GPU may have more than its
            minimum, and a CPU may have swap.
    """

    total_bytes: int
    ranks: int
    name: str
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What a rank takes, and what there is; ``limit`` is ``None`` where it is not known."""

    estimate: MemoryEstimate
    limit: MemoryLimit | None

    def to_json(self) -> dict[str, Any]:
        """Return all numbers in bytes, the parts of each moment, and the name of the memory."""
        estimate, limit = self.estimate, self.limit
        return {
            "least": estimate.least.size,
            "engine": dict(estimate.engine),
            "estimate": estimate.most.size,
            "certain": {moment.name: moment.parts for moment in estimate.certain},
            "planned": {moment.name: moment.parts for moment in estimate.planned},
            "limit": limit.total_bytes // limit.ranks if limit else None,
            "limit_of": limit.name if limit else None,
        }


def memory_limit(
    hardware: Hardware, *, nodes: int, environ: Mapping[str, str], inventory: Inventory | NvmlUnavailable
) -> MemoryLimit | None:
    """Return the memory that ranks have on this machine; ``None`` if neither a GPU nor the plan shows it.

    On a CPU it is the machine's, or the control group's where that is less. On GPUs it is that of the smallest that a
    rank gets; where there is none, the least that the plan asks for.

    Args:
        hardware: The plan's group.
        nodes: Machines that share the ranks.
        environ: The environment that decides which GPUs are visible.
        inventory: The GPUs that NVML reports.
    """
    ranks = hardware.ranks_per_node(nodes)
    if hardware.accelerator == "cpu":
        return MemoryLimit(total_bytes=available_memory_bytes(), ranks=ranks, name="this machine", certain=False)
    gpus = visible_devices(inventory.gpus, environ).gpus[:ranks] if isinstance(inventory, Inventory) else ()
    sizes = {gpu.memory_bytes: gpu.name for gpu in gpus if isinstance(gpu.memory_bytes, int)}
    if sizes:
        return MemoryLimit(total_bytes=min(sizes), ranks=1, name=sizes[min(sizes)], certain=True)
    if hardware.gpu_memory_gib is None:
        return None
    return MemoryLimit(
        total_bytes=int(hardware.gpu_memory_gib * GIB), ranks=1, name="hardware.gpu_memory_gib", certain=False
    )


def rank_memory(
    plan: Plan,
    model: Path,
    *,
    rows: RowSizes | None = None,
    nodes: int = 1,
    environ: Mapping[str, str],
    inventory: Inventory | NvmlUnavailable,
) -> RankMemory | None:
    """Return what a rank of a plan takes, and what there is; ``None`` where it cannot be estimated.

    That is so for a model or an adapter that its own check refuses.
    The arguments are those of `estimate_memory` and `memory_limit`.
    """
    limit = memory_limit(plan.hardware, nodes=nodes, environ=environ, inventory=inventory)
    try:
        estimate = estimate_memory(plan, model, rows=rows, gpu_bytes=limit.total_bytes if limit else None)
    except (Refusal, OSError, ValueError):
        return None
    return RankMemory(estimate=estimate, limit=limit)


def check_memory(memory: RankMemory, *, file: str | None, plan: Plan) -> tuple[list[Fault], list[str]]:
    """Compare what a rank takes with what there is; return faults and warnings.

    Args:
        memory: Both.
        file: The plan, for the faults.
        plan: The plan, for what can be changed in it.
    """
    estimate, limit = memory.estimate, memory.limit
    if limit is None:
        return [], []
    share = limit.total_bytes // limit.ranks
    name = limit.name if limit.ranks == 1 else f"{limit.name}, shared by {limit.ranks} ranks"
    no_room = []
    if plan.hardware.accelerator == "cuda" and plan.vllm is not None and estimate.engine:
        no_room = share_faults(estimate, plan.vllm, total=share, name=name, file=file)
    # What would fit without the engine is a fault of its share, and told as such.
    large = [moment for moment in estimate.certain if (moment.without_engine if no_room else moment.size) > share]
    refused = large if limit.certain else []
    if hopeless := [moment for moment in refused if sum(moment.fixed.values()) > share]:
        refused = [max(hopeless, key=lambda moment: moment.size)]  # the others have the same cause
    faults = [
        CONTEXT.fault(
            file=file,
            pointer=POINTERS[moment.name],
            found=f"a rank takes at least {_taken(moment)}",
            expected=f"at most {memory_size(share)}, the memory of {name}",
            fix=_advice(moment, share, plan, certain=True),
        )
        for moment in refused
    ]
    refused_names = {moment.name for moment in refused}
    near = [moment for moment in estimate.planned if moment.size > NEAR * share and moment.name not in refused_names]
    warnings = [
        f"{POINTERS[moment.name]}: with rows as long as planned, a rank takes about {_taken(moment)}, "
        f"of {memory_size(share)}, the memory of {name}: {_advice(moment, share, plan, certain=False)}"
        for moment in near
        if not hopeless and not (no_room and ENGINE in moment.parts)
    ]
    return [*no_room, *faults], warnings


def _advice(moment: Moment, share: int, plan: Plan, *, certain: bool) -> str:
    """Return what makes a moment fit; what is certain leaves EVI-PO's candidates out."""
    more = "use GPUs with more memory" if plan.hardware.accelerator == "cuda" else "use a machine with more memory"
    if ENGINE in moment.parts and plan.hardware.accelerator == "cuda" and not certain:
        more += ", plan a smaller vllm.gpu_memory_share"
    if sum(moment.fixed.values()) > share:
        return f"{more}, a smaller model or a lower lora.rank: this does not depend on the rows"
    if moment.name in {"validation", "evaluation"}:
        return f"{more}, or plan a smaller generation.evaluation_batch_size"
    if moment.name == "sampling":
        if Geometry.of(plan).rows_per_rank == plan.generation.num_generations:
            return (
                f"{more}, or plan a smaller generation.num_generations: all completions of a group are sampled together"
            )
        return (
            f"{more}, or plan a smaller optimisation.per_device_batch_size or fewer "
            "optimisation.gradient_accumulation_steps: all rows of a step are sampled together"
        )
    ways = [more]
    if not plan.optimisation.gradient_checkpointing:
        ways.append("plan optimisation.gradient_checkpointing")
    if plan.objective is not None and plan.objective.evi_po is not None and not certain:
        ways.append("plan a smaller objective.evi_po.max_rows_per_forward")
    if plan.optimisation.per_device_batch_size > 1:
        ways.append(
            "plan a smaller optimisation.per_device_batch_size with more optimisation.gradient_accumulation_steps"
        )
    return ", or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)


def memory_text(memory: RankMemory) -> str:
    """Return what a rank takes as one line."""
    estimate, limit = memory.estimate, memory.limit
    of = f", of {memory_size(limit.total_bytes // limit.ranks)} ({limit.name})" if limit else ""
    return (
        f"memory of a rank: at least {_taken(estimate.least)}; with rows as long as planned about "
        f"{_taken(estimate.most)}{of}"
    )


def _taken(moment: Moment) -> str:
    parts = ", ".join(f"{name} {memory_size(size)}" for name, size in moment.parts.items())
    return f"{memory_size(moment.size)} in {moment.name} ({parts})"
