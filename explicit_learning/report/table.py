"""Evaluations side by side as plain text: a row for each model, a column for each rate."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from explicit_learning.rundir.evaluation_summary import RATES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["evaluation_table"]

TITLE = {"FULL": "FULL\nright", "CONTROL": "CONTROL\nright", "SUBSTITUTE": "SUBSTITUTE\nflips"}
ENGINES = {"exact": "the exact engine", "vllm": "vLLM"}
WIDTH = 140


def evaluation_table(
    evaluations: Sequence[tuple[str, dict[str, Any]]], *, more: Sequence[tuple[str, Sequence[str]]] = ()
) -> str:
    """Return a text table of evaluations.

    Args:
        evaluations: Name and evaluation (as `explicit_learning.evaluation` writes it) of each row.
        more: Further columns: a title, and one text for each row.
    """
    from rich.console import Console
    from rich.table import Table

    operators = sorted(
        {state for _, found in evaluations for state in found["relations"].get("MISSING", {}).get("states", {})}
    )
    engines = sorted({found["engine"] for _, found in evaluations})
    by = " or ".join(ENGINES[engine] for engine in engines)
    shares = f"share of held-out questions, answered by {by}"
    table = Table(caption=f"{shares}; MISSING: share of abstentions, per removal operator")
    table.add_column("model", no_wrap=True)
    for title in (TITLE["FULL"], TITLE["CONTROL"]):
        table.add_column(title, justify="right")
    for operator in operators:
        table.add_column(f"MISSING\n{operator}", justify="right")
    table.add_column(TITLE["SUBSTITUTE"], justify="right")
    if len(engines) > 1:
        more = [("engine", [found["engine"] for _, found in evaluations]), *more]
    for title, _ in more:
        table.add_column(title, justify="right")
    for index, (name, found) in enumerate(evaluations):
        relations = found["relations"]
        states = relations.get("MISSING", {}).get("states", {})
        table.add_row(
            name,
            _rate(relations.get("FULL"), "FULL"),
            _rate(relations.get("CONTROL"), "CONTROL"),
            *(_rate(states.get(operator), "MISSING") for operator in operators),
            _rate(relations.get("SUBSTITUTE"), "SUBSTITUTE"),
            *(column[index] for _, column in more),
        )
    text = io.StringIO()
    Console(file=text, width=WIDTH).print(table)
    return text.getvalue()


def _rate(counts: dict[str, Any] | None, relation: str) -> str:
    return "–" if counts is None else f"{100 * counts[RATES[relation]]:.0f} %"
