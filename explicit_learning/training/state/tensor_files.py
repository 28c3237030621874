"""Files that ``torch.save`` wrote, read without running any code that they might hold."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["load_tensors"]

CONTEXT = Context(
    gate="checkpoint", fix="restore the checkpoint from a copy, or remove its folder to resume from the one before"
)


def load_tensors(path: Path) -> Any:
    """Load a file of tensors, numbers, texts and containers of them.

    Raises:
        Refusal: If it is missing, truncated, or holds anything else.
    """
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CONTEXT.at(path).refusal(
            found=f"cannot be loaded: {_reason(error)}",
            expected="tensors, numbers and containers of them, as they were when the checkpoint was sealed",
        ) from None


def _reason(error: Exception) -> str:
    """Return why a file was not loaded, without torch's advice to load it in the way that runs its code."""
    if isinstance(error, pickle.UnpicklingError):
        call = re.search(r"GLOBAL (\S+)", str(error))
        return f"loading it would call {call[1]}" if call else "it holds something other than plain data"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or "it ends too early").splitlines()[0]
