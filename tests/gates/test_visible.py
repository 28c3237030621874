"""CUDA's rules for its mask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.gates.visible import visible_devices
from tests.support.gpus import gpu

GPUS = (
    gpu(index=0, uuid="GPU-8932f937-d72c"),
    gpu(index=1, uuid="GPU-8932aaaa-d72c"),
    gpu(index=2, uuid="GPU-01234567-d72c"),
)


def indices(mask: str | None) -> list[int]:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    return [device.index for device in visible_devices(GPUS, environ).gpus]


# The rules, and several of the examples, are those of the CUDA programming guide's appendix on environment variables.
@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        (" ", []),
        ("2,1", [2, 1]),
        ("0, 2", [0, 2]),
        ("0,2,-1,1", [0, 2]),
        ("-1", []),
        ("0,3,1", [0]),
        ("1gpu2,2ampere", [1, 2]),
        ("none", []),
        ("0,,1", [0]),
        ("0,0", []),
        ("0,1,0", []),
        ("GPU-8932f937-d72c", [0]),
        ("GPU-8932f", [0]),
        ("GPU-0,GPU-8932a", [2, 1]),
        ("GPU-8932", []),
        ("GPU-0,GPU-ffff,GPU-8932a", [2]),
        ("GPU-0,1", [2]),
        ("0,GPU-0", [0]),
        ("GPU-0,GPU-01", []),
    ],
)
def test_masks(mask: str | None, expected: list[int]) -> None:
    assert indices(mask) == expected


@pytest.mark.parametrize(
    ("mask", "note"),
    [
        ("", "is empty"),
        ("0,7", "there is no GPU 7 among 3"),
        ("GPU-8932", "2 GPUs have that UUID prefix"),
        ("GPU-ffff", "no GPU has that UUID"),
        ("GPU-0,1", "not a GPU UUID"),
        ("x", "not an index"),
        ("1,1", "names GPU 1 twice"),
    ],
)
def test_what_the_mask_silently_does_is_said(mask: str, note: str) -> None:
    (found,) = visible_devices(GPUS, {"CUDA_VISIBLE_DEVICES": mask}).notes
    assert note in found


def test_mig_devices_are_kept_apart() -> None:
    visible = visible_devices(GPUS, {"CUDA_VISIBLE_DEVICES": "MIG-GPU-8932f937-d72c/1/0,MIG-41b36c38"})
    assert visible.gpus == ()
    assert visible.mig_devices == ("MIG-GPU-8932f937-d72c/1/0", "MIG-41b36c38")


def test_unlike_gpus_may_be_numbered_otherwise_by_cuda() -> None:
    unlike = (*GPUS, gpu(index=3, uuid="GPU-3", name="NVIDIA T1000"))
    (note,) = visible_devices(unlike, {"CUDA_VISIBLE_DEVICES": "0"}).notes
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in note
    assert len(visible_devices(unlike, {}).notes) == 1
    assert visible_devices(unlike, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).notes == ()
    assert visible_devices(unlike, {"CUDA_VISIBLE_DEVICES": "GPU-8932f"}).notes == ()


@given(st.text())
def test_no_mask_is_too_strange(mask: str) -> None:
    visible = visible_devices(GPUS, {"CUDA_VISIBLE_DEVICES": mask})
    assert len({device.index for device in visible.gpus}) == len(visible.gpus) <= len(GPUS)
    assert visible.mask == mask
