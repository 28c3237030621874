"""What a run's grade of determinism promises, in the words of its model card."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["promise"]

_SAME = "the same libraries (those of the lock) and the same number of ranks"
_EQUAL = "this adapter comes out again bit for bit, whether the run is interrupted or not"
PROMISES = {
    ("cpu", "strict"): (
        f"On the same model of processor, with {_SAME}, {_EQUAL}.\n\n"
        "Not covered: another model of processor. Libraries choose other kernels for it, and the last bits differ."
    ),
    ("cpu", "seeded"): (
        "Every seed is fixed, and each rank computes with one thread. On the same model of processor, with "
        f"{_SAME}, nothing is known that would make a repeated run differ.\n\n"
        "Not covered: another model of processor; and operations without a deterministic algorithm, which this grade "
        "does not refuse."
    ),
    ("cuda", "strict"): (
        f"On GPUs of the same model that are connected in the same way, with {_SAME}, {_EQUAL}.\n\n"
        "Not covered: another model of GPU, another number of ranks or other libraries, which take sums in another "
        "order."
    ),
    ("cuda", "seeded"): (
        "Every seed is fixed, and nothing else. A repeated or resumed run starts from the same numbers, but may differ "
        "in the last bits, and from then on in its completions: flash-attention's backward pass adds atomically, in "
        "another order each time, NCCL chooses how it adds, and Triton chooses tile sizes by timing, on each rank for "
        "itself.\n\n"
        "Not covered: equality bit for bit. Plans with determinism `strict` ask for it."
    ),
}

SAMPLED_BY_VLLM = (
    "vLLM sampled the completions. Each request had a seed of its own, of the seed, the slot, the visit and the "
    "generation; each version of the adapter was read back from the engine and compared with its file; the engine's "
    "base weights were never written. It computes in bfloat16, so its completions are the policy's up to rounding: the "
    "marker says how far both were apart."
)
SAMPLED_AGAIN = {
    "cpu": "On the same model of processor a repeated or resumed run samples the same tokens.",
    "cuda": "On GPUs a repeated or resumed run may sample other tokens from some step on: vLLM's sums can depend on "
    "which requests are computed together.",
}


def promise(plan: Plan) -> str:
    """Return what a plan's grade promises on its kind of hardware, and what is not covered."""
    promised = f"Determinism `{plan.determinism}`. {PROMISES[plan.hardware.accelerator, plan.determinism]}"
    if plan.vllm is None or not plan.vllm.use:
        return promised
    return f"{promised}\n\n{SAMPLED_BY_VLLM} {SAMPLED_AGAIN[plan.hardware.accelerator]}"
