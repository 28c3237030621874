"""The plot of memory: the peak of each rank in each launch that ended in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.report.plots.colours import series
from explicit_learning.report.plots.plot import Plot
from explicit_learning.report.run.legends import legend_inches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from explicit_learning.report.run.reading import ReportedRun
    from explicit_learning.rundir.launches import RankEnd

__all__ = ["memory_plot"]

MIB = 2**20
ALLOCATED, RESERVED = "allocated on the GPU, or resident on a CPU", "reserved by torch on the GPU"
LINE_INCHES = 0.3
LEAST_INCHES = 1.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The highest memory of a rank in a launch. Unit: bytes.

    Attributes:
        run: The run's name on the page.
        launch: The launch, from 1.
        rank: The rank.
        size: Allocated on the GPU, or resident on a CPU.
        reserved: Reserved by torch on the GPU; ``None`` on a CPU.
    """

    run: str
    launch: int
    rank: int
    size: int
    reserved: int | None


def memory_plot(runs: Sequence[ReportedRun]) -> Plot | None:
    """Return the plot of peak memory; ``None`` if no launch of the runs measured it.

    Args:
        runs: Runs of different names, no more than can be drawn.
    """
    peaks = [peak for run in runs for peak in _peaks(run)]
    if not peaks:
        return None
    names = list(dict.fromkeys(peak.run for peak in peaks))
    dots = {
        ALLOCATED: [(peak.size, peak.run) for peak in peaks],
        RESERVED: [(peak.reserved, peak.run) for peak in peaks if peak.reserved is not None],
    }
    kinds = [kind for kind, found in dots.items() if found]

    def draw(axes: Axes) -> None:
        for number, kind in enumerate(kinds):
            sizes, lines = [size / MIB for size, _ in dots[kind]], [names.index(run) for _, run in dots[kind]]
            marker, colour = "os"[number], series(number).colour
            axes.plot(sizes, lines, linestyle="", marker=marker, markersize=5, color=colour, label=kind)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel("MiB")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(visible=False, axis="y")
        axes.figure.legend(loc="outside lower center")

    highest = {name: max(peak.size for peak in peaks if peak.run == name) / MIB for name in names}
    texts = "; ".join(f"{name}: {size:,.0f} MiB at most" for name, size in highest.items())
    return Plot(
        name="memory",
        title="Peak memory of each rank and launch",
        description=f"A marker for each rank of each launch that ended in order. {texts}.",
        columns=("run", "launch", "rank", "peak (bytes)", "reserved (bytes)"),
        rows=tuple((peak.run, peak.launch, peak.rank, peak.size, peak.reserved) for peak in peaks),
        draw=draw,
        height=LEAST_INCHES + LINE_INCHES * len(names) + legend_inches(kinds),
    )


def _peaks(run: ReportedRun) -> Iterator[Peak]:
    for launch in run.files.launches:
        ranks: Sequence[RankEnd] = () if launch.end is None else launch.end.ranks
        for rank in ranks:
            if (size := rank.peak_memory_bytes) is not None:
                reserved = rank.peak_reserved_bytes
                yield Peak(run=run.name, launch=launch.start.number + 1, rank=rank.rank, size=size, reserved=reserved)
