"""What a rank's time and memory went into: each moment of a launch belongs to exactly one phase.

The peak of a whole launch does not say where it was, and torch and the kernel only keep the highest value so far. So
both are asked, and set back, whenever a phase begins or ends. A phase inside another one interrupts it: the phases'
times add up to the time of the launch.
"""

from __future__ import annotations

import resource
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.rundir.rank_report import PhaseUse

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from explicit_learning.rundir.rank_report import PhaseName

__all__ = ["CpuMemory", "CudaMemory", "Memory", "Phases"]

CLEAR = Path("/proc/self/clear_refs")
# What sets back a process's peak resident set size (proc(5)).
CLEAR_PEAK = "5"


class Memory:
    """The highest memory of this process: of the whole launch, and since it was last asked.

    Attributes:
        peak: Highest memory of the launch, as of when it was last asked. Unit: bytes.
        reserved: Highest GPU memory that torch had reserved from the driver; ``None`` on a CPU. Unit: bytes.
    """

    peak: int = 0
    reserved: int | None = None

    def take(self) -> int | None:
        """Return the highest memory since this was last called; ``None`` where it cannot be measured. Unit: bytes."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until the device has computed what it was given."""


class CpuMemory(Memory):
    """Resident memory. Files that are mapped, as weights are while they are loaded, count as far as they were read."""

    def take(self) -> int | None:
        """Return the highest resident memory since the last call.

        Where the kernel does not let a process set its peak back, that is known only of a new highest peak.
        """
        found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        known = found if found > self.peak else None
        self.peak = max(self.peak, found)
        with suppress(OSError):
            CLEAR.write_text(CLEAR_PEAK)
            return found
        return known


class CudaMemory(Memory):
    """GPU memory that torch has allocated on a device; 0 as long as CUDA has not been used."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.reserved = 0

    def take(self) -> int | None:
        """Return the highest allocated memory since the last call."""
        import torch

        if not torch.cuda.is_initialized():
            return 0
        found = int(torch.cuda.max_memory_allocated(self._device))
        self.peak = max(self.peak, found)
        self.reserved = max(self.reserved or 0, int(torch.cuda.max_memory_reserved(self._device)))
        torch.cuda.reset_peak_memory_stats(self._device)
        return found

    def wait(self) -> None:
        """Wait for the device: a phase ends when its kernels have run, not when they were queued."""
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize(self._device)


class Phases:
    """The phases of one launch on one rank; whatever belongs to no other phase is in ``other``."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._inside: list[PhaseName] = ["other"]
        self._since = time.monotonic()
        self._uses: dict[PhaseName, PhaseUse] = {}
        memory.take()

    @classmethod
    def on(cls, accelerator: str, local_rank: int) -> Phases:
        """Begin to measure on a rank's device.

        Args:
            accelerator: ``cpu`` or ``cuda``.
            local_rank: The rank among those of its machine: the index of its GPU.
        """
        if accelerator == "cpu":
            return cls(CpuMemory())
        import torch

        return cls(CudaMemory(torch.device("cuda", local_rank)))

    @contextmanager
    def phase(self, name: PhaseName) -> Iterator[None]:
        """Count what happens inside as a phase; what is interrupted by an error counts as the phase around it."""
        self._settle()
        self._inside.append(name)
        try:
            yield
            self._settle()
        finally:
            self._inside.pop()

    def uses(self) -> dict[PhaseName, PhaseUse]:
        """Return what each phase has used so far, in the order in which they were first left."""
        self._settle()
        return dict(self._uses)

    def ended(self) -> tuple[dict[PhaseName, PhaseUse], int, int | None]:
        """Return all that was measured, as of one moment, so that no phase's peak is above the launch's.

        Returns:
            What each phase has used, the highest memory and the highest reserved memory. Unit: bytes.
        """
        return self.uses(), self._memory.peak, self._memory.reserved

    def peak_memory_bytes(self) -> int:
        """Return the launch's highest memory so far: allocated on the GPU, or resident on a CPU."""
        self._settle()
        return self._memory.peak

    def peak_reserved_bytes(self) -> int | None:
        """Return the most GPU memory that torch has reserved so far; on a CPU it reserves none."""
        self._settle()
        return self._memory.reserved

    def _settle(self) -> None:
        """Add what has happened since this was last called to the phase it happened in."""
        self._memory.wait()
        now, name, peak = time.monotonic(), self._inside[-1], self._memory.take()
        before = self._uses.get(name, PhaseUse(seconds=0.0, peak_memory_bytes=None))
        peaks = [value for value in (before.peak_memory_bytes, peak) if value is not None]
        self._uses[name] = PhaseUse(
            seconds=before.seconds + now - self._since, peak_memory_bytes=max(peaks) if peaks else None
        )
        self._since = now
