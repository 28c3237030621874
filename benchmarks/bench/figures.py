"""What a figure is, and how two ways of doing something are timed against each other.

The machines that measure are shared. So the two ways take turns, which begin with one and the other alternately, and
what counts is the median of the turns' ratios: what slows one way slows its partner as well.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Figure", "Target", "cpu_seconds", "figures_table", "machine", "paired", "wall_seconds"]

Clock = Literal["wall", "CPU"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a ratio must be.

    Attributes:
        ratio: The bound.
        at_most: Whether the ratio must not be above it; otherwise not below it.
    """

    ratio: float
    at_most: bool

    def met(self, ratio: float) -> bool:
        """Whether a ratio is on the right side."""
        return ratio <= self.ratio if self.at_most else ratio >= self.ratio

    def text(self) -> str:
        """Return the bound as a person reads it."""
        return f"{'≤' if self.at_most else '≥'} {self.ratio:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A ratio, and what it is of.

    Attributes:
        name: What is measured.
        against: What it is compared with.
        seconds: Median time of what is measured.
        other_seconds: Median time of what it is compared with.
        ratio: Median of the turns' ratios, in the direction that the target means.
        clock: Whether the times are of the wall clock or of processors.
        turns: Number of turns.
        target: What the ratio must be.
    """

    name: str
    against: str
    seconds: float
    other_seconds: float
    ratio: float
    clock: Clock
    turns: int
    target: Target

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return self.target.met(self.ratio)


def wall_seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes by the wall clock."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return the processor time that a call takes, in all threads and in child processes that ended."""
    begun = _used()
    call()
    return _used() - begun


def _used() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def paired(
    name: str,
    against: str,
    one: Callable[[], object],
    other: Callable[[], object],
    *,
    target: Target,
    clock: Clock,
    turns: int,
) -> Figure:
    """Time two calls in turns.

    Args:
        name: What ``one`` is.
        against: What ``other`` is.
        one: What is measured.
        other: What it is compared with.
        target: What the ratio must be: ``one`` to ``other``, or ``other`` to ``one`` if it must be large.
        clock: Which time counts.
        turns: Number of turns, after one that does not count.
    """
    seconds = wall_seconds if clock == "wall" else cpu_seconds
    times: list[tuple[float, float]] = []
    for turn in range(turns + 1):
        calls = (one, other) if turn % 2 else (other, one)
        found = {call: seconds(call) for call in calls}
        if turn:
            times.append((found[one], found[other]))
    ratios = [first / second if target.at_most else second / first for first, second in times]
    return Figure(
        name=name,
        against=against,
        seconds=statistics.median(first for first, _ in times),
        other_seconds=statistics.median(second for _, second in times),
        ratio=statistics.median(ratios),
        clock=clock,
        turns=turns,
        target=target,
    )


def machine() -> dict[str, str | int | float]:
    """Return what the figures were measured on, and how busy it was."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


def figures_table(figures: Sequence[Figure]) -> str:
    """Return the figures as a table in Markdown."""
    lines = [
        "| what | against | time | against that | ratio | target | |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for figure in figures:
        times = f"{_time(figure.seconds)} | {_time(figure.other_seconds)} ({figure.clock}, {figure.turns} turns)"
        verdict = "holds" if figure.holds else "does not hold"
        lines.append(
            f"| {figure.name} | {figure.against} | {times} | {figure.ratio:.2f} | {figure.target.text()} | {verdict} |"
        )
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
