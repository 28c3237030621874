"""What the headers of a model's safetensors files show, without torch or numpy.

The format (an 8-byte little-endian length, a JSON header, the data) is documented at
https://github.com/huggingface/safetensors#format. A file is read here only if it is whole: its tensors follow each
other without a gap and end with the file.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard

from explicit_learning.errors import Context, found_text
from explicit_learning.files.strict_json import parse_json

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

__all__ = [
    "INDEX",
    "ITEM_BYTES",
    "LENGTH_BYTES",
    "MATRIX_DIMENSIONS",
    "TensorEntry",
    "lora_parameter_bound",
    "processor_bytes",
    "read_header",
    "safetensors_header",
    "weight_files",
]

CONTEXT = Context(
    gate="model", fix="fetch the file again, or restore it from a copy: it is damaged or is not a safetensors file"
)
MATRIX_DIMENSIONS = 2
INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
HEADER_LIMIT = 100_000_000  # the format's own
MAX_TENSOR_BYTES = 2**63 - 1  # what an offset in a file can be
# Bytes of an element, by the dtype's name in safetensors.
ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}


class TensorEntry(TypedDict):
    """A tensor in a header: dtype (safetensors name), shape, and [begin, end) of its bytes, counted from the data."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


def safetensors_header(path: Path, context: Context = CONTEXT) -> dict[str, TensorEntry]:
    """Return the entries of a safetensors file by tensor name, in the order of their data.

    Args:
        path: The file.
        context: Gate and fix of the faults.

    Raises:
        Refusal: If the file is not a whole safetensors file.
        OSError: If it cannot be read.
    """
    with path.open("rb") as stream:
        return read_header(stream, file=str(path), size=path.stat().st_size, context=context)[0]


def read_header(stream: BinaryIO, *, file: str, size: int, context: Context) -> tuple[dict[str, TensorEntry], int]:
    """Return the entries by tensor name, in the order of their data, and the offset at which the data starts.

    Args:
        stream: The open file, at its beginning.
        file: Its name, for the faults.
        size: Its length in bytes.
        context: Gate and fix of the faults.

    Raises:
        Refusal: If the file is not a whole safetensors file.
        OSError: If it cannot be read.
    """
    at = context.at(file)
    prefix = stream.read(LENGTH_BYTES)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == LENGTH_BYTES else 0
    if not 0 < length <= HEADER_LIMIT:
        raise at.refusal(found=f"a header of {length:,} bytes", expected=f"1 to {HEADER_LIMIT:,} bytes")
    data = stream.read(length)
    if len(data) < length:
        raise at.refusal(found=f"{len(data):,} bytes of a header of {length:,}", expected="a whole header")
    header = parse_json(data.rstrip(b" "), gate=at.gate, file=file, fix=at.fix)
    if not isinstance(header, dict):
        raise at.refusal(found=found_text(header), expected="a header that is a JSON object")
    header.pop("__metadata__", None)
    start = LENGTH_BYTES + length
    size -= start
    for name, entry in header.items():
        _check_entry(name, entry, at)
    entries: dict[str, TensorEntry] = dict(sorted(header.items(), key=lambda item: item[1]["data_offsets"]))
    end = 0
    for name, entry in entries.items():
        begin, stop = entry["data_offsets"]
        if begin != end or stop > size:
            expected = "tensors that follow each other without a gap and end with the file"
            raise at.refusal(pointer=f"/{name}", found=f"bytes {begin:,} to {stop:,} of {size:,}", expected=expected)
        end = stop
    if end != size:
        found, expected = f"{size - end:,} bytes after the last tensor", "a file that ends with its last tensor"
        raise at.refusal(found=found, expected=expected)
    return entries, start


def _check_entry(name: str, entry: Any, at: Context) -> None:  # noqa: ANN401 - any JSON value
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    pointer = f"/{name}"
    if not (_are_counts(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1]):  # noqa: PLR2004 - begin, end
        raise at.refusal(pointer=pointer, found=found_text(offsets), expected="data_offsets [begin, end]")
    if not isinstance(dtype, str) or not _are_counts(shape):
        found = f"{found_text(dtype)} of shape {found_text(shape)}"
        raise at.refusal(pointer=pointer, found=found, expected="the name of a dtype, and a shape")
    stored = offsets[1] - offsets[0]
    if dtype in ITEM_BYTES and stored != (right := _tensor_bytes(dtype, shape)):
        size = f"{right:,} bytes" if right <= MAX_TENSOR_BYTES else "more bytes than a file can hold"
        expected = f"{size}: a {dtype} tensor of shape {found_text(shape)}"
        raise at.refusal(pointer=pointer, found=f"{stored:,} bytes", expected=expected)


def _tensor_bytes(dtype: str, shape: list[int]) -> int:
    """Return the size of a tensor in bytes; of one beyond `MAX_TENSOR_BYTES`, any number beyond it.

    The product of a long shape would have millions of digits.
    """
    size = 0 if 0 in shape else ITEM_BYTES[dtype]
    for length in shape:
        if size > MAX_TENSOR_BYTES:
            break
        size *= length
    return size


def _are_counts(value: Any) -> TypeGuard[list[int]]:  # noqa: ANN401 - any JSON value
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a model's weights: those that the index lists, or all where there is no index.

    Raises:
        OSError: If the index cannot be read.
        ValueError, KeyError, TypeError, AttributeError: If it is not an index.
    """
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    return [folder / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]


def lora_parameter_bound(folder: Path, rank: int) -> int:
    """Return an upper bound of a LoRA adapter's parameters on a model folder.

    The disk gate needs it before torch is there. A LoRA pair on a linear layer of shape (out, in) has rank x (in + out)
    parameters; every two-dimensional weight is counted as a linear layer.

    Raises:
        Refusal: If a weight file is not a whole safetensors file.
        OSError: If it cannot be read.
    """
    shapes = [entry["shape"] for path in weight_files(folder) for entry in safetensors_header(path).values()]
    return rank * sum(sum(shape) for shape in shapes if len(shape) == MATRIX_DIMENSIONS)


def processor_bytes(folder: Path) -> int:
    """Return the size of a model folder without its weights: what each checkpoint copies of it, at most.

    Raises:
        OSError: If the folder cannot be read.
    """
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file() and path.suffix != ".safetensors")
