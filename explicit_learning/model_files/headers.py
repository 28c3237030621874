"""How large an adapter can get, from the model's headers alone.

The disk gate needs the number of trainable parameters before torch is there. A LoRA pair on a linear layer of shape
(out, in) has rank x (in + out) parameters; taking every two-dimensional weight for a linear layer bounds it from above.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["lora_parameter_bound", "processor_bytes", "safetensors_header"]

MATRIX_DIMENSIONS = 2


def safetensors_header(path: Path) -> dict[str, Any]:
    """Return a safetensors file's header: ``{tensor name: {dtype, shape, data_offsets}}`` without its metadata.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it has no such header.
    """
    with path.open("rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:  # noqa: PLR2004 - the format's length field, in bytes
            raise ValueError(f"{path.name} has no header")
        (length,) = struct.unpack("<Q", prefix)
        if length > path.stat().st_size:
            raise ValueError(f"{path.name} is truncated within its header")
        header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise TypeError(f"{path.name} has no header")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if not (isinstance(entry, dict) and isinstance(entry.get("dtype"), str) and _is_shape(entry.get("shape"))):
            raise ValueError(f"{path.name} has no dtype and shape for {name}")
    return header


def _is_shape(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(value, list) and all(type(side) is int and side >= 0 for side in value)


def lora_parameter_bound(folder: Path, rank: int) -> int:
    """Return an upper bound of a LoRA adapter's parameters on a model folder.

    Raises:
        OSError: If a weight file cannot be read.
        ValueError: If a weight file has no header.
    """
    shapes = [entry["shape"] for path in folder.glob("*.safetensors") for entry in safetensors_header(path).values()]
    return rank * sum(sum(shape) for shape in shapes if len(shape) == MATRIX_DIMENSIONS)


def processor_bytes(folder: Path) -> int:
    """Return the size of a model folder without its weights: what each checkpoint copies of it, at most.

    Raises:
        OSError: If the folder cannot be read.
    """
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file() and path.suffix != ".safetensors")
