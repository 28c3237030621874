"""Digests of live state: of named tensors (equal to those of the files they are saved in) and of containers of them.

Values, types, shapes and kinds of container count: a float32 moment that came back as float64, or a step counter that
came back as a plain number, continues differently. The device, the memory layout and the order in which a dictionary
was filled do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.model_files.tensors import digest_tensor, tensors_sha256
from explicit_learning.rundir import state_digests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.model_files.tensors import TensorDigest

__all__ = ["live_digest", "live_tensors_sha256", "state_sha256"]

# safetensors' names of torch's types.
_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}


def live_digest(tensor: torch.Tensor) -> TensorDigest:
    """Return the digest of one tensor, on whatever device it is."""
    plain = tensor.detach().to("cpu").contiguous()
    return digest_tensor(_NAMES[plain.dtype], tuple(plain.shape), plain.reshape(-1).view(torch.uint8).numpy().data)


def live_tensors_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of named tensors, as `model_files.tensors` defines it for files."""
    return tensors_sha256({name: live_digest(tensor) for name, tensor in tensors.items()})


def state_sha256(state: Any) -> str:
    """Return the digest of nested containers of tensors, numbers, texts and ``None``.

    Raises:
        TypeError: If it holds anything else: a digest without it would be the same for unequal states.
    """
    return state_digests.state_sha256(state, _digest_if_tensor)


def _digest_if_tensor(value: Any) -> TensorDigest | None:
    return live_digest(value) if isinstance(value, torch.Tensor) else None
