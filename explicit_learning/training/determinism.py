"""What the grades of determinism ask of torch, inside a rank's process.

`explicit_learning.launch.environment` sets what libraries read when they start (cuBLAS, NCCL, flash-attention). The
rest are switches of torch, all of them here: under ``strict`` each is set, whatever its default is in this or a later
version. Under ``seeded`` torch keeps its own choices.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from typing import Literal

__all__ = ["STRICT", "apply_determinism"]

# A switch in torch, its value, and why.
STRICT: tuple[tuple[str, bool, str], ...] = (
    (
        "utils.deterministic.fill_uninitialized_memory",
        False,
        "filling each new tensor with NaN helps programs that read memory nobody wrote; to this one it is only time",
    ),
    (
        "backends.cudnn.benchmark",
        False,
        "it measures several algorithms and takes the fastest, which can be another each time",
    ),
    ("backends.cudnn.deterministic", True, "it may otherwise take an algorithm that adds atomically"),
    # Of the newer `fp32_precision`, cuDNN has two, for convolutions and RNNs; torch fails where they seem to differ.
    ("backends.cuda.matmul.allow_tf32", False, "TF32 reads 10 bits of a float32's mantissa"),
    ("backends.cudnn.allow_tf32", False, "same; on by default"),
    (
        "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
        False,
        "on by default: partial sums of a product may be rounded to bfloat16, depending on its shape",
    ),
    ("backends.cuda.matmul.allow_fp16_reduced_precision_reduction", False, "same, to float16"),
    ("backends.cuda.matmul.allow_fp16_accumulation", False, "same, for whole sums"),
)


def apply_determinism(grade: Literal["seeded", "strict"]) -> None:
    """Set torch's switches for a plan's grade of determinism, before anything is computed.

    Under ``strict``, an operation without a deterministic kernel raises `RuntimeError` when it is called.
    """
    strict = grade == "strict"
    torch.use_deterministic_algorithms(strict)
    for switch, value, _ in STRICT if strict else ():
        place, _, name = switch.rpartition(".")
        setattr(attrgetter(place)(torch), name, value)
