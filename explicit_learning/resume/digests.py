"""Digests of live tensors, equal to those of the files they are saved in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from explicit_learning.provenance.tensors import digest_tensor, tensors_sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.provenance.tensors import TensorDigest

__all__ = ["live_digest", "live_tensors_sha256"]

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
}


def live_digest(tensor: torch.Tensor) -> TensorDigest:
    """Digest one tensor, wherever it lies."""
    plain = tensor.detach().to("cpu").contiguous()
    return digest_tensor(_NAMES[plain.dtype], tuple(plain.shape), plain.reshape(-1).view(torch.uint8).numpy().data)


def live_tensors_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of named tensors, as `provenance.tensors` defines it for files."""
    return tensors_sha256({name: live_digest(tensor) for name, tensor in tensors.items()})
