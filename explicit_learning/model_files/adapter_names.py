"""The names of an adapter's tensors: PEFT's, in its file and in the wrapped model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ADAPTER_PREFIX", "adapted_module", "adapted_modules", "matrix_name"]

# What PEFT puts before the full name of a module of the base model.
ADAPTER_PREFIX = "base_model.model."
# In the wrapped model a tensor's name holds the adapter's, too.
MATRIX = re.compile(r"\.lora_[AB](\.default)?\.weight$")


def matrix_name(module: str, matrix: str) -> str:
    """Return the name, in an adapter's file, of the matrix ``A`` or ``B`` of a module of the base model."""
    return f"{ADAPTER_PREFIX}{module}.lora_{matrix}.weight"


def adapted_module(tensor: str) -> str:
    """Return the full name, in the base model, of the module that a matrix is of."""
    return MATRIX.sub("", tensor.removeprefix(ADAPTER_PREFIX))


def adapted_modules(tensors: Iterable[str]) -> list[str]:
    """Return the sorted full names, in the base model, of the modules that some tensors are of, each once."""
    return sorted(set(map(adapted_module, tensors)))
