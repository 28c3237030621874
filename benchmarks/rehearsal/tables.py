"""What a rehearsal took, as tables in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from explicit_learning.rundir.rank_report import PhaseName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.rehearsal.runs import Command
    from explicit_learning.rundir.launches import RankEnd
    from explicit_learning.rundir.rank_report import PhaseUse

__all__ = ["commands_table", "phases_table"]

GIB = 2**30


def commands_table(commands: Sequence[Command]) -> str:
    """Return a row for each command: how long it took, its CPU time, and the most memory of one of its processes."""
    rows = [
        f"| {each.name} | {each.seconds:,.0f} | {each.cpu_seconds:,.0f} | {each.peak_bytes / GIB:.2f} |"
        for each in commands
    ]
    return "\n".join(["| command | seconds | CPU seconds | peak, GiB |", "| --- | ---: | ---: | ---: |", *rows])


def phases_table(runs: Mapping[str, RankEnd]) -> str:
    """Return a row for each phase, with its seconds and its peak in GiB in each run's last launch, and one for all."""
    rows = [
        f"| {name} | " + " | ".join(_cell((end.phases or {}).get(name)) for end in runs.values()) + " |"
        for name in get_args(PhaseName)
    ]
    totals = []
    for end in runs.values():
        seconds = sum(use.seconds for use in (end.phases or {}).values())
        totals.append(f"{seconds:,.0f} s, {(end.peak_memory_bytes or 0) / GIB:.2f}")
    head = ["| phase | " + " | ".join(runs) + " |", "| --- |" + " ---: |" * len(runs)]
    return "\n".join([*head, *rows, "| all | " + " | ".join(totals) + " |"])


def _cell(use: PhaseUse | None) -> str:
    if use is None:
        return ""
    peak = "?" if use.peak_memory_bytes is None else f"{use.peak_memory_bytes / GIB:.2f}"
    return f"{use.seconds:,.1f} s, {peak}"
