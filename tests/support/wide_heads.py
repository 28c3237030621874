"""The tiny model with gated-delta heads of 64 instead of 32, and adapters that fit it.

vLLM 0.31.0's CPU kernel of the gated-delta rule takes heads of 64 and 128 (Qwen3.5's have 128); the shipped model's
have 32. Here its heads are filled up with zeros, which stay zeros in the convolution, the state and the gate. Queries
are scaled by 1/√64 instead of 1/√32, and the norm behind the head takes the mean over twice as many numbers: its weight
and the norms' epsilon make up for both, so that the model answers as before, up to rounding.
"""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

__all__ = ["HEAD", "widen_adapter", "widen_model"]

NARROW, HEAD = 32, 64
LAYER = ".linear_attn."


def widen_model(source: Path, target: Path) -> Path:
    """Copy a model folder, widen its gated-delta heads (one key head and one value head), and return the copy."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    text = config["text_config"]
    for field in ("linear_key_head_dim", "linear_value_head_dim"):
        assert text[field] == NARROW
        text[field] = HEAD
    assert text["linear_num_key_heads"] == text["linear_num_value_heads"] == 1
    text["rms_norm_eps"] *= (NARROW / HEAD) ** 2
    (target / "config.json").write_text(json.dumps(config))
    norm = LAYER + "norm.weight"
    _rewrite(
        target / "model.safetensors",
        {
            LAYER + "in_proj_qkv.weight": lambda weight: _filled(weight, 0),
            LAYER + "conv1d.weight": lambda weight: _filled(weight, 0),
            LAYER + "in_proj_z.weight": lambda weight: _filled(weight, 0),
            LAYER + "out_proj.weight": lambda weight: _filled(weight, 1),
            norm: lambda weight: _filled((weight.float() / math.sqrt(HEAD / NARROW)).to(weight.dtype), 0),
        },
    )
    return target


def widen_adapter(source: Path, target: Path) -> Path:
    """Copy an adapter folder of the shipped model, make it fit the widened one, and return the copy."""
    shutil.copytree(source, target)
    _rewrite(
        target / "adapter_model.safetensors",
        {
            LAYER + "in_proj_qkv.lora_B.weight": lambda weight: _filled(weight, 0),
            LAYER + "in_proj_z.lora_B.weight": lambda weight: _filled(weight, 0),
            LAYER + "out_proj.lora_A.weight": lambda weight: _filled(weight, 1),
        },
    )
    return target


def _rewrite(file: Path, changes: dict[str, Callable[[Tensor], Tensor]]) -> None:
    tensors = load_file(file)
    changed = dict.fromkeys(changes, 0)
    for name, tensor in tensors.items():
        for end, change in changes.items():
            if name.endswith(end):
                tensors[name] = change(tensor).contiguous()
                changed[end] += 1
    assert all(changed.values()), changed
    save_file(tensors, file, metadata={"format": "pt"})


def _filled(tensor: Tensor, dimension: int) -> Tensor:
    """Append zeros to each block of `NARROW` along a dimension, so that it becomes a block of `HEAD`."""
    blocks = tensor.unflatten(dimension, (-1, NARROW))
    zeros = torch.zeros_like(blocks)
    return torch.cat((blocks, zeros), dim=dimension + 1).flatten(dimension, dimension + 1)
