"""Where a rank's time and memory went: every moment in one phase, and every peak where it was."""

from __future__ import annotations

import mmap
import resource
import time
from typing import TYPE_CHECKING

import pytest
import torch

from explicit_learning.training import phases as module
from explicit_learning.training.phases import CpuMemory, CudaMemory, Memory, Phases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 2**20
LARGE = 256 * MIB
# Resident memory is counted in batches on each core, and the interpreter needs some itself.
SLACK = 16 * MIB


def _may_set_back() -> bool:
    try:
        module.CLEAR.write_text(module.CLEAR_PEAK)
    except OSError:
        return False
    return True


may_set_back = pytest.mark.skipif(not _may_set_back(), reason="this kernel does not set back a process's peak")


class Told(Memory):
    """Memory as a test tells it."""

    def __init__(self, *peaks: int | None) -> None:
        self.peaks = iter(peaks)

    def take(self) -> int | None:
        found = next(self.peaks)
        self.peak = max(self.peak, found or 0)
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_phase_inside_another_interrupts_it_and_all_times_add_up(clock: list[float]) -> None:
    phases = Phases(Told(*range(1, 20)))
    clock[0] += 1
    with phases.phase("backward"):
        clock[0] += 2
        with phases.phase("score"):
            clock[0] += 4
            with phases.phase("score"):
                clock[0] += 8
        clock[0] += 16
    clock[0] += 32
    used = {name: use.seconds for name, use in phases.uses().items()}
    assert used == {"other": 33.0, "backward": 18.0, "score": 12.0}
    assert sum(used.values()) == clock[0] - 100.0


def test_each_phase_has_its_own_peak_and_the_launch_the_highest() -> None:
    # taken at: start, entry of load, its end, entry of score, its end, entry of load, its end, the question
    phases = Phases(Told(50, 10, 70, 20, 90, 30, 60, 40, 40, 40))
    with phases.phase("load"):
        pass
    with phases.phase("score"):
        pass
    with phases.phase("load"):
        pass
    assert {name: use.peak_memory_bytes for name, use in phases.uses().items()} == {
        "other": 40,
        "load": 70,
        "score": 90,
    }
    assert phases.peak_memory_bytes() == 90
    assert phases.peak_reserved_bytes() is None


def test_a_peak_that_the_kernel_does_not_tell_is_unknown_and_no_other_one() -> None:
    phases = Phases(Told(50, None, 70, None, None, None, None))
    with phases.phase("load"):
        pass
    with phases.phase("score"):
        pass
    found = {name: use.peak_memory_bytes for name, use in phases.uses().items()}
    assert found == {"other": None, "load": 70, "score": None}
    assert phases.peak_memory_bytes() == 70


def test_at_the_end_the_highest_phase_has_the_launchs_peak() -> None:
    phases = Phases(Told(40, 50, 60))  # it grows whenever it is asked
    assert phases.peak_memory_bytes() == 50
    uses, peak, reserved = phases.ended()
    assert (uses["other"].peak_memory_bytes, peak, reserved) == (60, 60, None)


def test_what_an_error_interrupts_belongs_to_the_phase_around_it(clock: list[float]) -> None:
    phases = Phases(Told(*[0] * 20))

    def score() -> None:
        with phases.phase("score"):
            clock[0] += 2
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        score()
    clock[0] += 1
    assert {name: use.seconds for name, use in phases.uses().items()} == {"other": 3.0}


@may_set_back
def test_on_a_cpu_a_peak_is_of_the_phase_in_which_memory_was_resident() -> None:
    phases = Phases(CpuMemory())
    with phases.phase("score"), mmap.mmap(-1, LARGE) as memory:  # given back at its end, whatever the allocator keeps
        memory[:] = bytes(1) * LARGE
    with phases.phase("backward"):
        pass
    used = phases.uses()
    score, backward = used["score"].peak_memory_bytes, used["backward"].peak_memory_bytes
    assert score is not None
    assert backward is not None
    assert score - backward > LARGE - SLACK
    assert phases.peak_memory_bytes() >= score
    assert phases.peak_reserved_bytes() is None


def test_without_the_right_to_set_it_back_only_a_new_highest_peak_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "CLEAR", tmp_path / "missing" / "clear_refs")
    told = iter([5000, 5000, 7000])
    monkeypatch.setattr(resource, "getrusage", lambda _: resource.struct_rusage([0.0, 0.0, next(told), *[0] * 13]))
    memory = CpuMemory()
    assert [memory.take() for _ in range(3)] == [5000 * 1024, None, 7000 * 1024]
    assert memory.peak == 7000 * 1024


def test_on_a_gpu_both_peaks_are_of_the_ranks_own_device_and_are_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 1)
    told = {"max_memory_allocated": [5000, 3000], "max_memory_reserved": [9000, 8000]}
    reset: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name, values in told.items():
        monkeypatch.setattr(torch.cuda, name, lambda of, values=values: {device: values}[of].pop(0))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    memory = CudaMemory(device)
    assert [memory.take(), memory.take()] == [5000, 3000]
    assert (memory.peak, memory.reserved, reset) == (5000, 9000, [device, device])
    memory.wait()
    assert waited == [device]


def test_before_cuda_is_used_nothing_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    phases = Phases.on("cuda", 1)
    assert (phases.peak_memory_bytes(), phases.peak_reserved_bytes()) == (0, 0)
