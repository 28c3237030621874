"""Base weights and adapter merged, file by file and a few rows at a time.

Each matrix becomes W + (alpha / r) · B · A, computed in float32 and then rounded once to the type that is written.
No more than some rows of one matrix are in memory, beside the adapter, so that a model of any size can be merged.
Files, names of tensors and their order are those of the base model.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import torch

from explicit_learning.errors import Context
from explicit_learning.export.model_files import written_type
from explicit_learning.files.progress import progress
from explicit_learning.model_files.adapter_names import adapted_modules, matrix_name
from explicit_learning.model_files.headers import ITEM_BYTES, LENGTH_BYTES, read_header, weight_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from torch import Tensor

    from explicit_learning.model_files.headers import TensorEntry

    Matrices = Mapping[str, tuple[Tensor, Tensor]]

__all__ = ["merge_weights"]

CONTEXT = Context(gate="model", fix="restore the model's files; without them nothing can be merged")
ROW_BYTES = 64 * 2**20  # of a matrix in float32: how much of it is in memory at a time
ALIGNMENT = 8  # of a header's length, as safetensors writes it
TORCH_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def merge_weights(model: Path, adapter: Path, out: Path, *, scale: float, dtype: str | None) -> None:
    """Write the weights of a model with an adapter merged into them.

    Args:
        model: The base model's folder.
        adapter: The adapter's safetensors file.
        out: The folder that gets the weights, in files of the base model's names.
        scale: What B · A is multiplied by: alpha / r.
        dtype: Type that weights are written in, as torch names it; ``None`` keeps that of each.

    Raises:
        Refusal: If a file of the model is not a whole safetensors file.
        OSError: If a file cannot be read or written.
    """
    from safetensors.torch import load_file

    tensors = load_file(adapter)
    matrices = {
        f"{module}.weight": (
            tensors[matrix_name(module, "A")].float(),
            tensors[matrix_name(module, "B")].float() * scale,
        )
        for module in adapted_modules(tensors)
    }
    files = weight_files(model)
    with progress("merging", sum(path.stat().st_size for path in files), "B") as advance:
        for path in files:
            target = out / path.relative_to(model)
            target.parent.mkdir(parents=True, exist_ok=True)
            _merge_file(path, target, matrices, dtype=dtype, advance=advance)


def _merge_file(
    path: Path, target: Path, matrices: Matrices, *, dtype: str | None, advance: Callable[[int], None]
) -> None:
    with path.open("rb") as source, target.open("wb") as written:
        entries, start = read_header(source, file=str(path), size=path.stat().st_size, context=CONTEXT)
        kinds = {name: written_type(entry, dtype) for name, entry in entries.items()}
        written.write(_header(entries, kinds))
        for name, entry in entries.items():
            source.seek(start + entry["data_offsets"][0])
            if name not in matrices and kinds[name] == entry["dtype"]:
                _copy(source, written, entry["data_offsets"][1] - entry["data_offsets"][0])
            else:
                for rows in _merged_rows(source, entry, matrices.get(name)):
                    data = rows.to(TORCH_TYPES[kinds[name]]).contiguous().view(-1).view(torch.uint8)
                    written.write(data.numpy().data)
            advance(entry["data_offsets"][1] - entry["data_offsets"][0])


def _header(entries: Mapping[str, TensorEntry], kinds: Mapping[str, str]) -> bytes:
    """Return the header of a file with the same tensors, in the same order, of other types."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, entry in entries.items():
        begin, end = end, end + math.prod(entry["shape"]) * ITEM_BYTES[kinds[name]]
        header[name] = {"dtype": kinds[name], "shape": entry["shape"], "data_offsets": [begin, end]}
    data = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    data += b" " * (-len(data) % ALIGNMENT)
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size and (chunk := source.read(min(size, ROW_BYTES))):
        target.write(chunk)
        size -= len(chunk)


def _merged_rows(source: BinaryIO, entry: TensorEntry, matrices: tuple[Tensor, Tensor] | None) -> Iterator[Tensor]:
    """Yield a tensor's rows, some at a time, in float32 or, if they are wider, in their own type.

    Args:
        source: The file, at the tensor's first byte.
        entry: The tensor.
        matrices: A and B · (alpha / r), both float32; ``None`` for a tensor that has no adapter.
    """
    kind = TORCH_TYPES[entry["dtype"]]
    columns = math.prod(entry["shape"][1:])
    row_bytes = columns * ITEM_BYTES[entry["dtype"]]
    count = entry["shape"][0] if entry["shape"] else 1
    step = max(1, ROW_BYTES // max(1, columns * ITEM_BYTES["F32"]))
    for first in range(0, count, step):
        rows = min(step, count - first)
        data = torch.frombuffer(bytearray(source.read(rows * row_bytes)), dtype=kind).view(rows, columns)
        exact = data.to(torch.promote_types(kind, torch.float32))
        if matrices is not None:
            narrow, wide = matrices
            exact = exact + (wide[first : first + rows] @ narrow).to(exact.dtype)
        yield exact
