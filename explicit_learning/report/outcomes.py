"""Evaluations in full as plain text: a row for each measure, a column for each model."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.rundir.evaluation_summary import RATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Outcome", "outcomes_of", "outcomes_text"]

COLUMNS = 4  # models side by side; more go into further tables
WIDTH = 140
RIGHT = {"FULL": "right", "CONTROL": "right", "MISSING": "abstentions", "SUBSTITUTE": "flips to the other answer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A measure of an evaluation.

    Attributes:
        name: What it is called.
        value: The measure: a share, or an area or a distance between 0 and 1; ``None`` where it was not measured.
        interval: Its 95 % interval; ``None`` where it has none.
        rows: Number of questions, groups or pairs behind it.
    """

    name: str
    value: float | None
    interval: tuple[float, float] | None
    rows: int | None


def outcomes_of(evaluation: dict[str, Any]) -> Iterator[Outcome]:
    """Yield the measures of an evaluation, as `explicit_learning.rundir.evaluation` writes it, in a fixed order."""
    for relation, block in evaluation["relations"].items():
        states = block["states"]
        if relation == "MISSING":
            for state, counts in states.items():
                yield _share(f"MISSING, {RIGHT[relation]}: {state}", counts, RATES[relation], counts["rows"])
        else:
            yield _share(f"{relation}, {RIGHT[relation]}", block, RATES[relation], block["rows"])
    for name, label, rows in (
        ("false_abstention", "abstentions where evidence is there", "rows"),
        ("consistency", "same answer to FULL and CONTROL", "pairs"),
        ("groups", "groups with every view right", "groups"),
        ("image_blind", "FULL right without the image", "rows"),
    ):
        yield _share(label, evaluation[name], "rate", evaluation[name][rows])
    answers = evaluation["rows"]
    yield Outcome(name="malformed answers", value=_of(evaluation["malformed"], answers), interval=None, rows=answers)
    calibration, curve = evaluation["calibration"], evaluation["risk_coverage"]
    error = None if calibration is None else calibration["expected_calibration_error"]
    judged = None if curve is None else curve["points"][-1]["answered"]
    yield Outcome(name="expected calibration error", value=error, interval=None, rows=judged)
    area = None if curve is None else curve["area"]
    yield Outcome(name="area under the risk-coverage curve", value=area, interval=None, rows=judged)


def _share(name: str, block: dict[str, Any], rate: str, rows: int) -> Outcome:
    low_high = block["interval"]
    interval = None if low_high is None else (low_high[0], low_high[1])
    return Outcome(name=name, value=block[rate], interval=interval, rows=rows)


def _of(count: int, of: int) -> float | None:
    return count / of if of else None


def outcomes_text(evaluations: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return text tables of evaluations, models side by side.

    Args:
        evaluations: Name and evaluation of each model.
    """
    parts = [evaluations[start : start + COLUMNS] for start in range(0, len(evaluations), COLUMNS)]
    return "\n".join(map(_table, parts))


def _table(evaluations: Sequence[tuple[str, dict[str, Any]]]) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(caption="in brackets: Wilson's 95 % interval within this one evaluation; –: not measured")
    table.add_column("measure", no_wrap=True)
    table.add_column("questions", justify="right")
    for name, found in evaluations:
        table.add_column(name if found["engine"] == "exact" else f"{name}\n{found['engine']}", justify="right")
    columns = [{outcome.name: outcome for outcome in outcomes_of(found)} for _, found in evaluations]
    for name in dict.fromkeys(name for column in columns for name in column):
        cells = [column.get(name) for column in columns]
        rows = sorted({f"{cell.rows:,}" for cell in cells if cell is not None and cell.rows is not None})
        table.add_row(name, "\n".join(rows), *map(_cell, cells))
    text = io.StringIO()
    Console(file=text, width=WIDTH).print(table)
    return text.getvalue()


def _cell(outcome: Outcome | None) -> str:
    if outcome is None or outcome.value is None:
        return "–"
    share = f"{100 * outcome.value:.1f} %"
    if outcome.interval is None:
        return share
    low, high = outcome.interval
    return f"{share} \\[{100 * low:.0f}, {100 * high:.0f}]"
