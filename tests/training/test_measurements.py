"""What a rank measures of its memory, on a CPU and on a GPU."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import torch

from explicit_learning.training.measurements import peak_memory_bytes, peak_reserved_bytes

if TYPE_CHECKING:
    import pytest


def test_on_a_cpu_memory_is_what_was_resident_and_nothing_is_reserved() -> None:
    device = torch.device("cpu")
    least = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    measured = peak_memory_bytes(device)
    assert 0 < least <= measured <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak_reserved_bytes(device) is None


def test_on_a_gpu_both_are_those_of_the_ranks_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {device: 5000}.__getitem__)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", {device: 9000}.__getitem__)
    assert (peak_memory_bytes(device), peak_reserved_bytes(device)) == (5000, 9000)
