"""Do vLLM's engine and the trainer both fit into a GPU?

With ``vllm.use``, a share of each GPU's memory (``vllm.gpu_memory_share``) belongs to an engine with a base model of
its own. An engine that does not fit into its share does not start; a trainer that does not fit beside it runs out of
memory hours later. What is compared is what both take whatever the rows, so that no share is refused that would do:

* the engine: weights, 2 P, in bfloat16 whatever the plan's type; adapter, a slot for two bfloat16 matrices of each
  trained module, of the rank that the engine reserves (`engine_rank`); kv cache, of one sequence of
  ``vllm.max_model_len`` tokens;
* the trainer: what `explicit_learning.gates.memory_estimate` knows for certain.

On a CPU there is no share: the engine takes its weights, its slot and `CPU_CACHE_BYTES` for its cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode
from explicit_learning.gates.activations import FLOAT32
from explicit_learning.gates.sizes import memory_size
from explicit_learning.inputs.lora_targets import adapter_values
from explicit_learning.plan.vllm_limits import CPU_CACHE_BYTES, engine_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from explicit_learning.errors import Fault
    from explicit_learning.gates.memory_estimate import MemoryEstimate
    from explicit_learning.model_files.dimensions import Dimensions
    from explicit_learning.plan.typed_plan import Plan, Vllm

__all__ = ["ENGINE", "cache_bytes", "engine_memory", "share_faults"]

CONTEXT = Context(gate="memory", exit_code=ExitCode.HARDWARE)
# The engine's part of a moment.
ENGINE = "vllm"
POINTER = "/vllm/gpu_memory_share"
BFLOAT16 = 2


def cache_bytes(model: Dimensions, *, tokens: int, item: int) -> int:
    """Return the bytes of what a sequence leaves for its next token: keys and values, and gated-delta layers' states.

    Args:
        model: The model's dimensions.
        tokens: Tokens of the sequence.
        item: Bytes of a value of the model's type.
    """
    convolution = model.kernel * (2 * model.linear_key + model.linear_value) * item
    state = model.linear_layers * (model.linear_state * FLOAT32 + convolution)
    return model.full_layers * 2 * model.key * item * tokens + state


def engine_memory(plan: Plan, model: Dimensions, targets: Iterable[tuple[int, int]]) -> dict[str, int]:
    """Return what a rank's engine takes at least, by part; nothing where the plan samples without vLLM. Unit: bytes.

    Args:
        plan: The plan.
        model: The model's dimensions.
        targets: Shapes (out, in) of the modules with an adapter.

    Raises:
        ValueError: If the adapter's rank is above the engine's largest.
    """
    if plan.vllm is None or not plan.vllm.use:
        return {}
    cache = cache_bytes(model, tokens=plan.vllm.max_model_len, item=BFLOAT16)
    return {
        "weights": model.parameters * BFLOAT16,
        "adapter": BFLOAT16 * adapter_values(targets, engine_rank(plan.lora.rank)),
        "kv cache": max(cache, CPU_CACHE_BYTES) if plan.hardware.accelerator == "cpu" else cache,
    }


def share_faults(estimate: MemoryEstimate, vllm: Vllm, *, total: int, name: str, file: str | None) -> list[Fault]:
    """Return why a share of a GPU's memory leaves no room for the engine, or none for the trainer.

    Args:
        estimate: What a rank takes.
        vllm: The plan's group.
        total: The GPU's memory. Unit: bytes.
        name: What has this memory, for the faults.
        file: The plan, for the faults.

    Returns:
        Faults with exit code 69. None is about a trainer that would not fit alone.
    """
    needed, trainer = sum(estimate.engine.values()), max(estimate.certain, key=lambda moment: moment.without_engine)
    share, taken = int(vllm.gpu_memory_share * total), trainer.without_engine
    # To whole hundredths, so that the numbers that are told would do.
    least, most = math.ceil(100 * needed / total) / 100, math.floor(100 * (total - taken) / total) / 100
    fix = "use GPUs with more memory, or set vllm.use to false: no share leaves room for both"
    if least <= most:
        fix = f"set it to a number from {least:.2f} to {most:.2f}"
    of = f"of {memory_size(total)}, the memory of {name}"
    faults = []
    if share < needed:
        found = f"{vllm.gpu_memory_share:g}, which gives vLLM's engine {memory_size(share)} {of}"
        expected = f"at least {memory_size(needed)} for the engine ({_parts(estimate.engine)})"
        faults.append(CONTEXT.fault(file=file, pointer=POINTER, found=found, expected=expected, fix=fix))
    if taken <= total < share + taken:
        found = f"{vllm.gpu_memory_share:g}, which leaves the trainer {memory_size(total - share)} {of}"
        parts = _parts({part: size for part, size in trainer.parts.items() if part != ENGINE})
        expected = f"at least {memory_size(taken)} for the trainer in {trainer.name} ({parts})"
        faults.append(CONTEXT.fault(file=file, pointer=POINTER, found=found, expected=expected, fix=fix))
    return faults


def _parts(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {memory_size(size)}" for name, size in sizes.items())
