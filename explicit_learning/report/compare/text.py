"""A comparison as plain text: whether the runs are comparable, each run's rates, and the differences between arms."""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING

from explicit_learning.errors.invisible import escaped
from explicit_learning.report.compare.figures import (
    NOTHING,
    findings,
    interval_points,
    no_finding,
    p_text,
    percent,
    points,
    reason_text,
    shows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from explicit_learning.report.compare.document import Comparison

__all__ = ["comparison_text"]

WIDTH = 140
SHOWN = 20


def comparison_text(found: Comparison) -> str:
    """Return the comparison as a person reads it on a terminal of 140 columns."""
    parts = ["\n".join(_opening(found)), _printed(_runs_table(found))]
    if found.contrasts:
        parts.append(_printed(_contrasts_table(found)))
    parts.append("\n".join(f"note: {remark}" for remark in found.remarks))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part).rstrip("\n")


def _opening(found: Comparison) -> Iterator[str]:
    if found.comparable:
        yield f"comparable: {len(found.arms)} arms; differences are to {found.baseline}"
        yield from (f"shown: {finding}" for finding in list(findings(found)) or [no_finding(found)])
    else:
        yield "not comparable: each run's figures follow, without differences"
        yield from _listed([reason_text(reason) for reason in found.reasons], "")
    for run in found.left_out[:SHOWN]:
        yield f"left out: {run.place}"
        yield from _listed([reason_text(reason) for reason in run.reasons], "  ")
    if len(found.left_out) > SHOWN:
        yield f"and {len(found.left_out) - SHOWN} more runs left out"


def _listed(texts: list[str], indent: str) -> Iterator[str]:
    yield from (f"{indent}  {escaped(text)}" for text in texts[:SHOWN])
    if len(texts) > SHOWN:
        yield f"{indent}  and {len(texts) - SHOWN} more"


def _runs_table(found: Comparison) -> Table:
    table, times = _table("each run"), Counter(run.run_id for run in found.runs)
    table.add_column("run", overflow="fold")
    for measure in found.measures:
        table.add_column(measure.title.replace(", ", "\n").replace(" ", "\n", 1), justify="right")
    table.add_column("tokens\nsampled", justify="right")
    for run in found.runs:
        rates = {figure.measure: percent(figure.rate) for figure in run.measures}
        tokens = NOTHING if run.sampled_tokens is None else f"{run.sampled_tokens:,}"
        cells = [rates.get(measure.name, NOTHING) for measure in found.measures]
        name = run.run_id if times[run.run_id] == 1 else run.place
        table.add_row(name if run.compared else f"({name})", *cells, tokens)
    return table


def _contrasts_table(found: Comparison) -> Table:
    table = _table(f"differences to {found.baseline}, in percentage points; intervals hold {100 * found.level:.0f} %")
    table.add_column("measure", overflow="fold")
    table.add_column("arm")
    for title in ("difference", "t interval", "p", "p by Holm", "bootstrap", "seeds"):
        table.add_column(title, justify="right")
    table.add_column("")
    titles = {measure.name: measure.title for measure in found.measures}
    last = ""
    for contrast in found.contrasts:
        table.add_row(
            "" if contrast.measure == last else titles[contrast.measure],
            contrast.arm,
            points(contrast.mean),
            interval_points(contrast.t_interval),
            p_text(contrast.p_value),
            p_text(contrast.adjusted_p_value),
            interval_points(contrast.bootstrap_interval),
            str(len(contrast.seeds)),
            shows(contrast) or "",
        )
        last = contrast.measure
    return table


def _table(title: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def _printed(table: Table) -> str:
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=WIDTH, markup=False, emoji=False, highlight=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
