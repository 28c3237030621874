"""What an engine computes with, compared with the adapter's file, module by module.

vLLM joins some modules (query, key and value, say) and keeps a matrix A and a matrix B for each part. B is stored in
bfloat16 and multiplied by alpha / rank. Joined parts lie in the order in which the model names them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.model_files.adapter_names import ADAPTER_PREFIX
from explicit_learning.rundir.layout import ADAPTER_CONFIG, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = ["adapter_faults", "engine_name"]

# The beginnings of a module's name in transformers, and in vLLM.
PREFIXES = (("model.language_model.", "language_model.model."), ("model.visual.", "visual."))


def engine_name(name: str) -> str:
    """Return vLLM's name of a module of the base model, before it is joined with others."""
    for ours, theirs in PREFIXES:
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def adapter_faults(model: Any, folder: Path) -> list[str]:
    """Return the names of the modules, in vLLM, whose matrices are not those of a file; none if all are.

    Args:
        model: The engine's model.
        folder: Folder of the adapter.
    """
    from safetensors.torch import load_file

    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    pairs = _pairs(load_file(folder / ADAPTER_WEIGHTS), scale=config["lora_alpha"] / config["r"])
    joined: dict[str, list[str]] = model.packed_modules_mapping
    faults = []
    for name, module in model.named_modules():
        if not hasattr(module, "lora_a_stacked"):
            continue
        parent, _, end = name.rpartition(".")
        parts = [pair for part in joined.get(end, [end]) if (pair := pairs.pop(f"{parent}.{part}", None))]
        if not _equal(module, parts):
            faults.append(name)
    # What is left has no module that computes with it.
    return faults + sorted(pairs)


def _pairs(tensors: dict[str, Tensor], *, scale: float) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A and B of each module as the engine should have them, by vLLM's name; without those that do nothing."""
    ends = (".lora_A.weight", ".lora_B.weight")
    names = {name.removesuffix(ends[0]) for name in tensors if name.endswith(ends[0])}
    if len(tensors) != len(ends) * len(names):
        raise AssertionError("an adapter's file holds other tensors than pairs of matrices")
    pairs = {
        engine_name(name.removeprefix(ADAPTER_PREFIX)): (
            tensors[name + ends[0]].bfloat16(),
            tensors[name + ends[1]].bfloat16() * scale,
        )
        for name in names
    }
    return {name: pair for name, pair in pairs.items() if bool(pair[0].any())}


def _equal(module: Any, parts: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether a module computes with these pairs, one after another, and with nothing else.

    A pair of the file can lie in several slices (a layer's own query, key and value): each has the file's whole A and a
    piece of its B.
    """
    slices = [(a[0, 0].cpu(), b[0, 0].cpu()) for a, b in zip(module.lora_a_stacked, module.lora_b_stacked, strict=True)]
    used = [(a, b) for a, b in slices if bool(a.any())]
    if any(bool(b.any()) for a, b in slices if not bool(a.any())):
        return False
    for a, b in parts:
        rank, rows = a.shape[0], 0
        while rows < b.shape[0]:
            if not used:
                return False
            found_a, found_b = used.pop(0)
            piece = b[rows : rows + found_b.shape[0]]
            if piece.shape[0] != found_b.shape[0] or not _holds(found_a, a) or not _holds(found_b.t(), piece.t()):
                return False
            rows += found_b.shape[0]
        if rank > slices[0][0].shape[0]:
            return False
    return not used


def _holds(found: Tensor, expected: Tensor) -> bool:
    """Whether a matrix begins with the expected rows and has only zeros after them."""
    rank = expected.shape[0]
    return torch.equal(found[:rank], expected) and not bool(found[rank:].any())
