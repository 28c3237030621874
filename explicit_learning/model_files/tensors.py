"""The identity of an adapter is that of its tensors.

A safetensors file's bytes depend on the order in which its writer put the tensors, and on free-form metadata; two
files with equal tensors must have one digest, and it must be computable from tensors in memory too, so that "what was
trained" and "what was saved" can be compared.

The digest is the SHA-256 of the RFC 8785 form of ``{name: {"dtype": D, "shape": [...], "sha256": H}}``, where D is the
dtype's name in safetensors (``F32``, ``BF16``, ...) and H the SHA-256 of the elements' bytes, little-endian, in C
order. The file format (an 8-byte little-endian length, a JSON header, the data) is documented at
https://github.com/huggingface/safetensors#format; it is parsed here so that proving needs neither torch nor numpy.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from explicit_learning.errors import Fault, Refusal, found_text
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.strict_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import BinaryIO

__all__ = ["TensorDigest", "digest_tensor", "file_tensors", "file_tensors_sha256", "tensors_sha256"]

GATE = "adapter"
LENGTH_BYTES = 8
HEADER_LIMIT = 100_000_000  # the format's own
CHUNK = 1 << 20
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigest:
    """One tensor's dtype (safetensors name), shape, and SHA-256 of its bytes (little-endian, C order)."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


def digest_tensor(dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> TensorDigest:
    """Digest a tensor in memory.

    Args:
        dtype: Its dtype's name in safetensors.
        shape: Its shape; ``()`` for a scalar.
        data: Its elements' bytes, little-endian, in C order.

    Raises:
        ValueError: If the bytes are not those of that many elements of that type.
    """
    if dtype not in ITEM_BYTES or memoryview(data).nbytes != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ValueError(f"{memoryview(data).nbytes} bytes are no {dtype} tensor of shape {list(shape)}")
    return TensorDigest(dtype=dtype, shape=shape, sha256=hashlib.sha256(data).hexdigest())


def tensors_sha256(tensors: Mapping[str, TensorDigest]) -> str:
    """Return the digest of named tensors."""
    return sha256_json({name: asdict(tensor) for name, tensor in tensors.items()})


def file_tensors_sha256(path: Path) -> str:
    """Return the digest of all tensors of a safetensors file (see `file_tensors`)."""
    return tensors_sha256(file_tensors(path))


def file_tensors(path: Path) -> dict[str, TensorDigest]:
    """Digest each tensor of a safetensors file.

    Raises:
        Refusal: If the file is truncated or otherwise no whole safetensors file.
        OSError: If it cannot be read.
    """
    with path.open("rb") as stream:
        header, start = _header(stream, path)
        size = path.stat().st_size - start
        result, end = {}, 0
        for name, entry in sorted(header.items(), key=lambda item: _offsets(item[1], path, item[0])):
            begin, stop = _offsets(entry, path, name)
            dtype, shape = entry.get("dtype"), entry.get("shape")
            if begin != end or stop > size:
                found = f"bytes {begin} to {stop} of {size}"
                _refuse(path, name, found, "tensors that follow each other without a gap and end with the file")
            if dtype not in ITEM_BYTES or not _is_shape(shape):
                _refuse(path, name, f"{found_text(dtype)} of shape {found_text(shape)}", "a known dtype and a shape")
            if stop - begin != math.prod(shape) * ITEM_BYTES[dtype]:
                _refuse(path, name, f"{stop - begin} bytes", f"those of a {dtype} tensor of shape {shape}")
            sha256 = _hash_range(stream, start + begin, stop - begin)
            result[name] = TensorDigest(dtype=dtype, shape=tuple(shape), sha256=sha256)
            end = stop
        if end != size:
            _refuse(path, "", f"{size - end} bytes after the last tensor", "a file that ends with its last tensor")
    return result


def _header(stream: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """Return the entries by tensor name, and where the data begins."""
    prefix = stream.read(LENGTH_BYTES)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == LENGTH_BYTES else 0
    if not 0 < length <= HEADER_LIMIT:
        _refuse(path, "", f"a header of {length} bytes", f"1 to {HEADER_LIMIT} bytes")
    data = stream.read(length)
    if len(data) < length:
        _refuse(path, "", f"{len(data)} bytes of a header of {length}", "a whole header")
    header = parse_json(data.rstrip(b" "), gate=GATE, file=str(path))
    if not isinstance(header, dict):
        _refuse(path, "", found_text(header), "a JSON object")
    header.pop("__metadata__", None)
    return header, LENGTH_BYTES + length


def _offsets(entry: Any, path: Path, name: str) -> tuple[int, int]:  # noqa: ANN401 - any JSON value
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not (isinstance(offsets, list) and _is_shape(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1]):  # noqa: PLR2004 - begin, end
        _refuse(path, name, found_text(offsets), "data_offsets [begin, end]")
    return offsets[0], offsets[1]


def _is_shape(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _hash_range(stream: BinaryIO, begin: int, length: int) -> str:
    digest = hashlib.sha256()
    stream.seek(begin)
    while length and (chunk := stream.read(min(length, CHUNK))):
        digest.update(chunk)
        length -= len(chunk)
    return digest.hexdigest()


def _refuse(path: Path, name: str, found: str, expected: str) -> NoReturn:
    fix = "the file is damaged or no safetensors file: restore it from a copy"
    pointer = f"/{name}" if name else ""
    raise Refusal(Fault(gate=GATE, file=str(path), pointer=pointer, found=found, expected=expected, fix=fix))
