"""A lock whose parts of CUDA are of several versions is refused, and which packages count as parts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from explicit_learning.lock import FULL_LOCK, Lock, cuda_faults, read_lock

if TYPE_CHECKING:
    from pathlib import Path


def changed(folder: Path, **versions: str) -> Lock:
    """Return the shipped lock with other versions of some packages (``_`` in a name stands for ``-``)."""
    text = FULL_LOCK.read_text()
    for name, version in versions.items():
        package = name.replace("_", "-")
        text, count = re.subn(rf"(?m)^{package}==[0-9.]+", f"{package}=={version}", text)
        assert count == 1
    path = folder / "environment.lock"
    path.write_text(text)
    return read_lock(path)


def test_the_shipped_lock_has_one_version() -> None:
    assert cuda_faults(read_lock(FULL_LOCK)) == []


def test_the_mixture_that_a_resolver_takes_is_refused_by_name(tmp_path: Path) -> None:
    lock = changed(tmp_path, nvidia_cuda_nvcc="13.2.78", nvidia_cuda_crt="13.5.10", nvidia_cuda_cccl="13.3.3.3")
    faults = cuda_faults(lock)
    assert [(fault.pointer, fault.found) for fault in faults] == [
        ("nvidia-cuda-cccl", "nvidia-cuda-cccl 13.3.3.3"),
        ("nvidia-cuda-crt", "nvidia-cuda-crt 13.5.10"),
        ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc 13.2.78"),
    ]
    assert {fault.exit_code for fault in faults} == {78}
    assert faults[0].expected.startswith("nvidia-cuda-cccl of CUDA 13.0")


@pytest.mark.parametrize(
    "name",
    [
        *("nvidia_cuda_nvcc", "nvidia_cuda_crt", "nvidia_cuda_cccl", "nvidia_cuda_runtime", "nvidia_cuda_nvrtc"),
        *("nvidia_cuda_cupti", "nvidia_nvvm", "nvidia_nvjitlink", "nvidia_nvtx"),
    ],
)
@pytest.mark.parametrize("version", ["13.1.0", "12.0.88", "14.0.1"])
def test_each_part_counts(tmp_path: Path, name: str, version: str) -> None:
    assert [fault.pointer for fault in cuda_faults(changed(tmp_path, **{name: version}))] == [name.replace("_", "-")]


@pytest.mark.parametrize("name", ["nvidia_cuda_nvdisasm", "nvidia_cufft", "nvidia_nccl_cu13", "cuda_bindings"])
def test_what_only_reads_machine_code_or_counts_on_its_own_does_not(tmp_path: Path, name: str) -> None:
    assert cuda_faults(changed(tmp_path, **{name: "99.1.2"})) == []


def test_a_runtime_of_another_version_than_the_heads_is_refused(tmp_path: Path) -> None:
    text = FULL_LOCK.read_text().replace('# cuda = "13.0.2"', '# cuda = "13.1.0"')
    path = tmp_path / "environment.lock"
    path.write_text(text)
    assert "nvidia-cuda-runtime" in {fault.pointer for fault in cuda_faults(read_lock(path))}
