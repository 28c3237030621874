"""Will a rank fit into its GPU's memory?

Running out of memory costs the hours until it happens, and says nothing about the plan. So what a rank takes is
estimated from the plan, the model's configuration and the headers of its weights, without torch, in two ways:

* *least*: what every run of the plan takes, whatever its rows. If it does not fit, the plan is refused;
* *estimate*: what it takes if rows are as long as the plan permits. If it comes near the memory, there is a warning.

With P parameters of the model, A of an adapter, e bytes per value of the model's type (2 or 4), R rows of a backward
pass, S rows that a rank samples together, T tokens of a row, C of them its completion, h features, V rows of the output
layer (in bytes):

* weights, P e: frozen, in the plan's type.
* adapters, 4 A, and 4 A for the reference where beta is not 0: PEFT keeps adapters of bfloat16 models in float32, and
  TRL keeps the reference as a second, frozen adapter.
* gradients, 4 A, and 4 A for DDP's buckets where there are several ranks (torch: ``gradient_as_bucket_view=False``).
* optimizer, 8 A: AdamW's two moments.
* vllm: its share of the GPU's memory, which it reserves.
* activations: R T h e for each layer with checkpointing, and the values of one layer, computed again; without it,
  R T times the values of all layers.
* logits, 8 R C min(V, 32768): TRL 1.16 computes the output layer in tiles of that many rows, and their gradient.
* kv cache: S T times key and value features for each full layer, and the state of each gated-delta layer.
* sampling: the prompts' forward, of which one layer is there at a time, and 40 S V for a position's logits.

The values of a layer are those of `explicit_learning.gates.activations`. EVI-PO adds one forward of candidates
(`max_rows_per_forward`), PAPO a second forward where its masked images have a gradient. Sampling and backward do not
overlap: the larger one counts. Kernels' workspaces and the allocator's gaps are left out; `RUNTIME_BYTES` stands for
the libraries.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.gates.activations import FLOAT32, Activations
from explicit_learning.gates.machine import available_memory_bytes
from explicit_learning.gates.nvml import Inventory
from explicit_learning.gates.visible import visible_devices
from explicit_learning.inputs.data import ImageTokens
from explicit_learning.inputs.lora_targets import resolve_targets
from explicit_learning.model_files.dimensions import Dimensions
from explicit_learning.model_files.weights import linear_modules
from explicit_learning.plan.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.gates.nvml import NvmlUnavailable
    from explicit_learning.plan.typed_plan import Hardware, Lora, Plan

__all__ = [
    "MemoryEstimate",
    "MemoryLimit",
    "RankMemory",
    "check_memory",
    "estimate_memory",
    "memory_limit",
    "memory_text",
    "rank_memory",
]

CONTEXT = Context(gate="memory", exit_code=ExitCode.HARDWARE)
GIB = 2**30
TYPE_BYTES = {"float32": 4, "bfloat16": 2}
MOMENTS = 2
# Columns of the output layer that TRL computes together, and the copies of them: logits and their gradient.
HEAD_TILE, TILE_COPIES = 32_768, 2
# Copies of a sampled position's logits, as values of four bytes: the layer's and the grammar's mask in float32, and of
# the choice the logits, probabilities, weights and their running sum in eight bytes each.
SAMPLED_COPIES = 10
# CUDA's context and its libraries' kernels; on a CPU, what Python with torch, transformers and TRL holds.
RUNTIME_BYTES = {"cuda": GIB, "cpu": 3 * GIB // 4}
# Share of the memory from which on a plan is near it: an estimate is not exact, and the allocator leaves gaps.
NEAR = 0.9


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
class MemoryEstimate:
    """What one rank takes. Unit of all: bytes.

    Attributes:
        runtime: Libraries.
        weights: The model.
        adapters: The adapter, and the reference where there is one.
        gradients: Gradients of the adapter, and DDP's copy.
        optimizer: AdamW's moments.
        vllm: vLLM's share; 0 where the trained model samples itself.
        activations: What a backward pass keeps.
        logits: The output layer's part of a backward pass.
        kv_cache: What sampling keeps of the tokens before.
        sampling: What sampling takes beside: the prompts' forward, and the logits.
        least: What every run of the plan takes, whatever its rows.
        estimate: What it takes with rows as long as the plan permits.
    """

    runtime: int
    weights: int
    adapters: int
    gradients: int
    optimizer: int
    vllm: int
    activations: int
    logits: int
    kv_cache: int
    sampling: int
    least: int
    estimate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What a rank takes, and what there is; ``limit`` is ``None`` where it is not known."""

    estimate: MemoryEstimate
    limit: MemoryLimit | None

    def to_json(self) -> dict[str, Any]:
        """Return all numbers in bytes, and the name of the memory."""
        share = self.limit.total_bytes // self.limit.ranks if self.limit else None
        return {**asdict(self.estimate), "limit": share, "limit_of": self.limit.name if self.limit else None}


def estimate_memory(
    plan: Plan, model: Path, *, images: ImageTokens | None = None, gpu_bytes: int | None = None
) -> MemoryEstimate | None:
    """Return what a rank of a plan takes, or ``None`` for a model of another architecture.

    Args:
        plan: The plan.
        model: The model's folder.
        images: Image tokens of the rows; without them, between none and as many as a prompt may have.
        gpu_bytes: Memory of the GPU, of which vLLM takes a share.

    Raises:
        OSError: If a file of the model cannot be read.
        ValueError, KeyError, TypeError, AttributeError: If a file is not what its name says.
        Refusal: If a weight file is not whole, or the plan's adapter does not fit the model.
    """
    dimensions, linear = Dimensions.of_model(model), linear_modules(model)
    if dimensions is None or linear is None:
        return None
    objective, optimisation, generation = plan.objective, plan.optimisation, plan.generation
    targets = resolve_targets(linear, plan.lora)
    adapter = _adapter_bytes(plan.lora, {name: linear[name] for name in targets})
    item = TYPE_BYTES[plan.model.dtype]
    geometry = Geometry.of(plan)
    images = images or ImageTokens(fewest=0, most=generation.max_prompt_tokens)
    kept_of = Activations(
        model=dimensions,
        item=item,
        compiled=plan.hardware.accelerator == "cuda",
        checkpointed=optimisation.gradient_checkpointing,
        rank=plan.lora.rank,
        dropout=plan.lora.dropout > 0,
        targets={name: linear[name] for name in targets},
    )
    tokens = generation.max_prompt_tokens + generation.max_completion_tokens
    shown = min(images.most, generation.max_prompt_tokens)

    weights = dimensions.parameters * item
    reference = objective is not None and objective.beta != 0
    adapters = adapter * (1 + reference)
    buckets = adapter if geometry.ranks > 1 else 0
    optimizer = MOMENTS * adapter
    activations = kept_of.text(geometry.batch, tokens) + kept_of.vision(geometry.batch, shown) + kept_of.matrices()
    tile = min(HEAD_TILE, dimensions.vocabulary)
    logits = geometry.batch * generation.max_completion_tokens * tile
    logits *= FLOAT32 * TILE_COPIES
    if objective is not None and objective.evi_po is not None:
        rows = objective.evi_po.max_rows_per_forward
        activations += kept_of.text(rows, tokens) + kept_of.vision(rows, shown)
        logits += rows * generation.max_completion_tokens * tile * FLOAT32 * TILE_COPIES
    if objective is not None and objective.papo is not None and objective.papo.aug_entropy_grad:
        activations *= 2
    vllm = int(plan.vllm.gpu_memory_share * gpu_bytes) if plan.vllm and plan.vllm.use and gpu_bytes else 0
    kv_cache = sampling = least_cache = 0
    if not ARMS[plan.arm].is_sft and not (plan.vllm and plan.vllm.use):
        rows = geometry.rows_per_rank
        kv_cache = rows * _cache_bytes(dimensions, item, tokens)
        least_cache = rows * _cache_bytes(dimensions, item, images.fewest)
        sampling = rows * generation.max_prompt_tokens * (dimensions.hidden + 2 * dimensions.intermediate) * item
        sampling += rows * dimensions.vocabulary * FLOAT32 * SAMPLED_COPIES

    fixed = weights + adapters + buckets + vllm
    # From the second step on, moments are there while activations are; gradients, only in a step's later passes.
    kept = optimizer if optimisation.max_steps > 1 else 0
    inputs = dimensions.layers * geometry.batch * images.fewest * dimensions.hidden * item
    later = adapter if geometry.accumulation > 1 else 0
    least = fixed + max(adapter + optimizer, kept + later + inputs, kept + least_cache)
    runtime = RUNTIME_BYTES[plan.hardware.accelerator]
    phases = (adapter + activations + logits, kv_cache + sampling)
    return MemoryEstimate(
        runtime=runtime,
        weights=weights,
        adapters=adapters,
        gradients=adapter + buckets,
        optimizer=optimizer,
        vllm=vllm,
        activations=activations,
        logits=logits,
        kv_cache=kv_cache,
        sampling=sampling,
        least=least,
        estimate=runtime + fixed + optimizer + max(phases),
    )


def _adapter_bytes(lora: Lora, shapes: dict[str, tuple[int, int]]) -> int:
    """Return the bytes of an adapter: two float32 matrices of the plan's rank for each module (out, in)."""
    return FLOAT32 * lora.rank * sum(sum(shape) for shape in shapes.values())


def _cache_bytes(model: Dimensions, item: int, tokens: int) -> int:
    """Return what sampling keeps of a row of so many tokens."""
    convolution = model.kernel * (2 * model.linear_key + model.linear_value) * item
    linear = model.linear_layers * (model.linear_state * FLOAT32 + convolution)
    return model.full_layers * 2 * model.key * item * tokens + linear


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
    images: ImageTokens | None = None,
    nodes: int = 1,
    environ: Mapping[str, str],
    inventory: Inventory | NvmlUnavailable,
) -> RankMemory | None:
    """Return what a rank of a plan takes, and what there is; ``None`` where it cannot be estimated.

    That is so for other architectures than Qwen3.5, and for a model or an adapter that its own check refuses.
    The arguments are those of `estimate_memory` and `memory_limit`.
    """
    limit = memory_limit(plan.hardware, nodes=nodes, environ=environ, inventory=inventory)
    try:
        estimate = estimate_memory(plan, model, images=images, gpu_bytes=limit.total_bytes if limit else None)
    except (Refusal, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None if estimate is None else RankMemory(estimate=estimate, limit=limit)


def check_memory(memory: RankMemory, *, file: str | None) -> tuple[list[Fault], list[str]]:
    """Compare what a rank takes with what there is; return faults and warnings.

    Args:
        memory: Both.
        file: The plan, for the faults.
    """
    estimate, limit = memory.estimate, memory.limit
    if limit is None:
        return [], []
    share = limit.total_bytes // limit.ranks
    name = limit.name if limit.ranks == 1 else f"{limit.name}, shared by {limit.ranks} ranks"
    if estimate.least > share and limit.certain:
        fault = CONTEXT.fault(
            file=file,
            pointer="/optimisation/per_device_batch_size",
            found=f"a rank takes at least {_size(estimate.least)}: {_parts(estimate)}",
            expected=f"at most {_size(share)}, the memory of {name}",
            fix="use GPUs with more memory, or plan a smaller per_device_batch_size with more accumulation steps, or a "
            "lower lora.rank",
        )
        return [fault], []
    if estimate.estimate <= NEAR * share:
        return [], []
    warning = (
        f"/optimisation/per_device_batch_size: with rows as long as planned, a rank takes about "
        f"{_size(estimate.estimate)} of {_size(share)}, the memory of {name} ({_parts(estimate)}): a smaller "
        "per_device_batch_size with more accumulation steps takes less, and so does a smaller "
        "objective.evi_po.max_rows_per_forward"
    )
    return [], [warning]


def memory_text(memory: RankMemory) -> str:
    """Return what a rank takes as one line."""
    estimate, limit = memory.estimate, memory.limit
    of = f" of {_size(limit.total_bytes // limit.ranks)} ({limit.name})" if limit else ""
    return (
        f"memory of a rank: at least {_size(estimate.least)}, and with rows as long as planned about "
        f"{_size(estimate.estimate)}{of}: {_parts(estimate)}"
    )


def _parts(estimate: MemoryEstimate) -> str:
    sizes = {name: size for name, size in asdict(estimate).items() if name not in {"least", "estimate"} and size}
    return ", ".join(f"{name.replace('_', ' ')} {_size(size)}" for name, size in sizes.items())


def _size(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 100 else f"{size / 2**20:.2f} MiB"
