"""The identity of an adapter is that of its tensors.

A safetensors file's bytes depend on the order in which its writer put the tensors, and on free-form metadata; two
files with equal tensors must have one digest, and it must be computable from tensors in memory too, so that "what was
trained" and "what was saved" can be compared.

The digest is the SHA-256 of the RFC 8785 form of ``{name: {"dtype": D, "shape": [...], "sha256": H}}``, where D is the
dtype's name in safetensors (``F32``, ``BF16``, ...) and H the SHA-256 of the elements' bytes, little-endian, in C
order. Neither torch nor numpy is needed to compute it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, found_text
from explicit_learning.files.canonical import sha256_json
from explicit_learning.model_files.headers import ITEM_BYTES, read_header

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import BinaryIO

    from explicit_learning.files.tree import Tree

__all__ = [
    "TensorDigest",
    "digest_tensor",
    "file_tensors",
    "file_tensors_sha256",
    "tensors_sha256",
    "tree_tensors",
]

CONTEXT = Context(
    gate="adapter", fix="restore the file from a copy, or train again: it is damaged or is not a safetensors file"
)
CHUNK = 1 << 20


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
        raise ValueError(f"{memoryview(data).nbytes} bytes are not a {dtype} tensor of shape {list(shape)}")
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
        Refusal: If the file is not a whole safetensors file, or has a tensor of an unknown dtype.
        OSError: If it cannot be read.
    """
    with path.open("rb") as stream:
        return _stream_tensors(stream, str(path), path.stat().st_size)


def tree_tensors(tree: Tree, name: str) -> dict[str, TensorDigest]:
    """Digest each tensor of a safetensors file of a tree (see `file_tensors`)."""
    with tree.open(name) as stream:
        return _stream_tensors(stream, tree.place(name), tree.files[name])


def _stream_tensors(stream: BinaryIO, file: str, size: int) -> dict[str, TensorDigest]:
    result = {}
    entries, start = read_header(stream, file=file, size=size, context=CONTEXT)
    for name, entry in entries.items():
        dtype, (begin, end) = entry["dtype"], entry["data_offsets"]
        if dtype not in ITEM_BYTES:
            found, expected = f"dtype {found_text(dtype)}", f"one of {', '.join(ITEM_BYTES)}"
            raise CONTEXT.refusal(file=file, pointer=f"/{name}", found=found, expected=expected)
        sha256 = _hash_range(stream, start + begin, end - begin)
        result[name] = TensorDigest(dtype=dtype, shape=tuple(entry["shape"]), sha256=sha256)
    return result


def _hash_range(stream: BinaryIO, begin: int, length: int) -> str:
    digest = hashlib.sha256()
    stream.seek(begin)
    while length and (chunk := stream.read(min(length, CHUNK))):
        digest.update(chunk)
        length -= len(chunk)
    return digest.hexdigest()
