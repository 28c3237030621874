"""The tensor digest: known values, equal for file and memory, blind to order and metadata, alert to all else."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from explicit_learning.errors import Refusal
from explicit_learning.model_files.tensors import (
    TensorDigest,
    digest_tensor,
    file_tensors,
    file_tensors_sha256,
    tensors_sha256,
)

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {"float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8", "bool": "BOOL"}


def raw(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_known_digest(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": np.array([[1.0, 2.0]], dtype=np.float32)}, path)
    element = hashlib.sha256(bytes.fromhex("0000803f00000040")).hexdigest()
    assert file_tensors(path) == {"w": TensorDigest(dtype="F32", shape=(1, 2), sha256=element)}
    form = f'{{"w":{{"dtype":"F32","sha256":"{element}","shape":[1,2]}}}}'
    assert file_tensors_sha256(path) == hashlib.sha256(form.encode()).hexdigest()
    # Records of finished runs hold such digests: the definition may not change.
    assert file_tensors_sha256(path) == "0c492f50ae783562366ab41081d12584be6367318bdc96fb22a515c13322448a"


def test_bfloat16_and_scalars(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = {
        "b": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "s": {"dtype": "F32", "shape": [], "data_offsets": [4, 8]},
    }
    path.write_bytes(raw(header, b"\x80\x3f\x00\x40" + b"\x00\x00\x80\x3f"))
    assert file_tensors(path) == {
        "b": digest_tensor("BF16", (2,), b"\x80\x3f\x00\x40"),
        "s": digest_tensor("F32", (), b"\x00\x00\x80\x3f"),
    }


@settings(max_examples=30, deadline=None)
@given(
    tensors=st.dictionaries(
        st.text(st.characters(codec="ascii", exclude_characters="_"), min_size=1, max_size=8),
        st.tuples(st.sampled_from(sorted(NAMES)), st.lists(st.integers(0, 3), max_size=3)),
        max_size=4,
    )
)
def test_file_and_memory_agree(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, tuple[str, list[int]]]
) -> None:
    arrays = {name: np.ones(shape, dtype=dtype) for name, (dtype, shape) in tensors.items()}
    path = tmp_path_factory.mktemp("tensors") / "a.safetensors"
    path.write_bytes(save(arrays, metadata={"format": "pt"}))
    live = {
        name: digest_tensor(NAMES[array.dtype.name], array.shape, array.tobytes()) for name, array in arrays.items()
    }
    assert file_tensors(path) == live
    assert file_tensors_sha256(path) == tensors_sha256(dict(reversed(live.items())))


def test_order_and_metadata_mean_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    a = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    b = {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}
    first.write_bytes(raw({"a": a, "b": b}, b"\1\2\3"))
    swapped = {"b": b | {"data_offsets": [0, 2]}, "a": a | {"data_offsets": [2, 3]}, "__metadata__": {"x": "y"}}
    second.write_bytes(raw(swapped, b"\2\3\1"))
    assert first.read_bytes() != second.read_bytes()
    assert file_tensors_sha256(first) == file_tensors_sha256(second)


def test_name_dtype_shape_and_every_bit_mean_something() -> None:
    base = {"w": digest_tensor("F16", (2, 1), b"abcd")}
    others = [
        {"v": digest_tensor("F16", (2, 1), b"abcd")},
        {"w": digest_tensor("BF16", (2, 1), b"abcd")},
        {"w": digest_tensor("F16", (1, 2), b"abcd")},
        {"w": digest_tensor("F16", (2, 1), b"abce")},
    ]
    assert len({tensors_sha256(tensors) for tensors in [base, *others]}) == 5


@pytest.mark.parametrize(("dtype", "data"), [("F32", b"abc"), ("F4", b"abcd")])
def test_bytes_that_are_no_such_tensor(dtype: str, data: bytes) -> None:
    with pytest.raises(ValueError, match="are not a"):
        digest_tensor(dtype, (1,), data)


GOOD = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "a header of 0 bytes"),
        (struct.pack("<Q", 2**60), f"a header of {2**60:,} bytes"),
        (struct.pack("<Q", 100) + b"{}", "2 bytes of a header of 100"),
        (struct.pack("<Q", 2) + b"[]", "[]"),
        (struct.pack("<Q", 2) + b"{ ", "line 1"),
        (raw({"w": GOOD}, b"a"), "bytes 0 to 2 of 1"),
        (raw({"w": GOOD}, b"abc"), "1 bytes after the last tensor"),
        (raw({"w": GOOD | {"data_offsets": [1, 3]}}, b"abc"), "bytes 1 to 3 of 3"),
        (raw({"w": GOOD, "v": GOOD}, b"ab"), "bytes 0 to 2 of 2"),
        (raw({"w": GOOD | {"shape": [3]}}, b"ab"), "2 bytes"),
        (raw({"w": GOOD | {"dtype": "Q8"}}, b"ab"), 'dtype "Q8"'),
        (raw({"w": GOOD | {"shape": [-2]}}, b"ab"), '"U8" of shape [-2]'),
        (raw({"w": GOOD | {"data_offsets": [2, 0]}}, b"ab"), "[2, 0]"),
        (raw({"w": 5}, b"ab"), "null"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes, found: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(Refusal) as refusal:
        file_tensors(path)
    (fault,) = refusal.value.faults
    assert found in fault.found
    assert fault.file == str(path)


def test_truncation_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    whole = save({"w": np.arange(6, dtype=np.float32), "v": np.zeros((2, 2), dtype=np.float16)})
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Refusal):
            file_tensors(path)


@pytest.mark.parametrize("length", [400, 100_000])
def test_a_shape_whose_product_no_file_can_hold_is_refused_at_once(tmp_path: Path, length: int) -> None:
    # 400 such sizes have a product of 6,382 digits, more than Python writes; 100,000 took ten seconds to multiply.
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw({"w": {"dtype": "F32", "shape": [2**53 - 1] * length, "data_offsets": [0, 0]}}, b""))
    with pytest.raises(Refusal) as caught:
        file_tensors(path)
    (fault,) = caught.value.faults
    assert fault.pointer == "/w"
    assert fault.found == "0 bytes"
    assert fault.expected.startswith("more bytes than a file can hold: a F32 tensor of shape [9007199254740991, ")
    assert len(fault.expected) < 400


def test_a_shape_with_a_zero_holds_no_bytes_whatever_else_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw({"w": {"dtype": "F32", "shape": [2**53 - 1] * 4 + [0], "data_offsets": [0, 0]}}, b""))
    assert file_tensors(path)["w"].sha256 == hashlib.sha256(b"").hexdigest()
