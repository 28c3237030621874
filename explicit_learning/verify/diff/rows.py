"""What two runs computed, row by row: completions with their scores, and metrics; and where they first part.

Rows are read as they are compared, so a trace of a million rows takes no more memory than one of ten. The comparison
of a file ends at its first difference: after it, everything that is computed differs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.accounting.binding import Binding
from explicit_learning.accounting.rows import TraceRow
from explicit_learning.accounting.trace import read_trace
from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.jsonl import stream_rows
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.typed_json import RESTORE, field_names, to_json
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan

__all__ = [
    "ComparedFile",
    "FieldDifference",
    "Parting",
    "Row",
    "by_step",
    "compare_rows",
    "first_parting",
    "in_order",
    "metrics_rows",
    "trace_rows",
]

GATE = "run"
CONTEXT = Context(gate=GATE, fix=RESTORE)
# What a row of a trace belongs to; it was not computed. Another commit is reported where launches are compared.
LABELS = frozenset({"run_id", "arm", "running_commit", "frozen_config_sha256"})
COMPUTED = tuple(name for name in field_names(TraceRow) if name not in LABELS)
STEP = "step"
ROW = "the row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a trace or of the metrics.

    Attributes:
        line: Its line in the file, from 1.
        step: The optimizer step that it was computed for, from 1.
        completion: SLOT/VISIT/GENERATION; ``None`` for metrics.
        values: What was computed, by field.
    """

    line: int
    step: int
    completion: str | None
    values: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDifference:
    """A field in which two rows differ, with both values as JSON; ``None`` where a run has none."""

    field: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first place in a file at which two runs part.

    Attributes:
        step: The optimizer step, from 1.
        file: The file, relative to either run directory.
        line_a: The row's line in the first run; ``None`` where it has none, and for adapters.
        line_b: The same in the second run.
        completion: SLOT/VISIT/GENERATION of the row, in the first run that has it; ``None`` outside traces.
        fields: Every field of the row that differs, or every tensor with the digests of both.
    """

    step: int
    file: str
    line_a: int | None
    line_b: int | None
    completion: str | None
    fields: tuple[FieldDifference, ...]


@dataclass(slots=True, kw_only=True)
class ComparedFile:
    """A file of two runs, as far as it was compared.

    Attributes:
        file: The file, relative to either run directory.
        rows: Rows that are equal, before the first difference.
        step: The step of the last of them; 0 for none.
        parting: Where the runs part; ``None`` if they do not.
        ends_first: Whose rows end while the other's go on: ``a``, ``b``, or ``None``.
        single_rows: Rows that only one run has in between, because the other logs more seldom.
        fields_of_a: Fields that only the first run's rows have.
        fields_of_b: Fields that only the second run's rows have.
    """

    file: str
    rows: int = 0
    step: int = 0
    parting: Parting | None = None
    ends_first: str | None = None
    single_rows: int = 0
    fields_of_a: set[str] = field(default_factory=set)
    fields_of_b: set[str] = field(default_factory=set)


def trace_rows(tree: Tree, plan: Plan, rank: int, *, torn_end: bool = False) -> Iterator[Row]:
    """Yield the rows of a rank's trace, in order; a torn last one is left out where there may be one.

    Raises:
        Refusal: If the file is missing, unreadable, of another run, or has a line that breaks its schema.
    """
    for line, row in enumerate(read_trace(tree, Binding.of(plan, rank), torn_end=torn_end), start=2):
        yield Row(
            line=line,
            step=row.optimizer_step + 1,
            completion=f"{row.slot_id}/{row.visit}/{row.generation}",
            values={name: getattr(row, name) for name in COMPUTED},
        )


def metrics_rows(tree: Tree, *, torn_end: bool = False) -> Iterator[Row]:
    """Yield the rows of a run's metrics, in order of their steps; a torn last one as in `trace_rows`.

    Raises:
        Refusal: If the file is missing or unreadable, or has a row without a step after the one before, or with a
            value that is neither a number nor null.
    """
    place, before = tree.place(layout.METRICS), 0
    try:
        with tree.open(layout.METRICS) as stream:
            for line, values in stream_rows(stream, file=place, gate=GATE, torn_end=torn_end):
                _check_metrics(values, before, CONTEXT.at(f"{place}:{line}"))
                before = values[STEP]
                yield Row(line=line, step=before, completion=None, values=values)
    except OSError as error:
        expected = "a readable JSON Lines file"
        raise Refusal(read_fault(error, Path(place), gate=GATE, expected=expected, missing_fix=RESTORE)) from None


def _check_metrics(values: dict[str, Any], before: int, at: Context) -> None:
    step = values.get(STEP)
    if type(step) is not int or step <= before:
        expected = f"an integer above {before}, the step of the row before"
        raise at.refusal(pointer=f"/{STEP}", found=found_text(step), expected=expected)
    for name, value in values.items():
        if value is not None and type(value) not in {int, float}:
            raise at.refusal(pointer=f"/{name}", found=found_text(value), expected="a number or null")


def in_order(ours: Iterable[Row], theirs: Iterable[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """Pair rows by their place, up to the first one that only one run has."""
    for a, b in zip_longest(ours, theirs):
        yield a, b
        if a is None or b is None:
            return


def by_step(ours: Iterable[Row], theirs: Iterable[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """Pair rows of equal steps; every row that only one run has stands alone. Both are in order of their steps."""
    left, right = iter(ours), iter(theirs)
    a, b = next(left, None), next(right, None)
    while a is not None or b is not None:
        if a is not None and b is not None and a.step == b.step:
            yield a, b
            a, b = next(left, None), next(right, None)
        elif b is None or (a is not None and a.step < b.step):
            yield a, None
            a = next(left, None)
        else:
            yield None, b
            b = next(right, None)


def compare_rows(
    file: str, pairs: Iterable[tuple[Row | None, Row | None]], *, whole: bool, same_fields: bool
) -> ComparedFile:
    """Compare rows up to the first difference.

    Args:
        file: The file, relative to either run directory.
        pairs: Its rows, as `in_order` or `by_step` pair them.
        whole: Whether a row that only one run has is a difference.
        same_fields: Whether a field that only one run has is a difference.
    """
    found = ComparedFile(file=file)
    single = 0
    for a, b in pairs:
        if a is None or b is None:
            if whole:
                found.parting = _single(file, a, b)
                return found
            single += 1
            found.ends_first = "a" if a is None else "b"
            continue
        found.single_rows, found.ends_first = found.single_rows + single, None
        single = 0
        if a.values != b.values and (fields := _fields(a, b, found, same_fields=same_fields)):
            step = min(a.step, b.step)
            completion, lines = a.completion, {"line_a": a.line, "line_b": b.line}
            found.parting = Parting(step=step, file=file, completion=completion, fields=fields, **lines)
            return found
        found.rows, found.step = found.rows + 1, a.step
    return found


def first_parting(partings: Iterable[Parting | None]) -> Parting | None:
    """Return the first parting in the order of computing: completions, the metrics of an update, adapters."""
    return min((each for each in partings if each is not None), key=_order, default=None)


def _order(parting: Parting) -> tuple[int, int, str]:
    kind = 0 if parting.completion is not None else 1 if parting.file == layout.METRICS else 2
    return parting.step, kind, parting.file


def _fields(a: Row, b: Row, found: ComparedFile, *, same_fields: bool) -> tuple[FieldDifference, ...]:
    """Return the fields in which two rows differ, in the rows' own order; note those that only one run has."""
    if not same_fields:
        found.fields_of_a |= a.values.keys() - b.values.keys()
        found.fields_of_b |= b.values.keys() - a.values.keys()
    names = [*a.values, *(name for name in b.values if name not in a.values)]
    return tuple(
        FieldDifference(field=name, a=_text(a.values, name), b=_text(b.values, name))
        for name in names
        if (name in a.values and name in b.values and a.values[name] != b.values[name])
        or (same_fields and (name in a.values) != (name in b.values))
    )


def _single(file: str, a: Row | None, b: Row | None) -> Parting:
    """Return the parting at a row that only one run has."""
    row = a or b
    if row is None:
        raise AssertionError("a pair has a row")
    there = _json(row.completion or f"step {row.step}")
    return Parting(
        step=row.step,
        file=file,
        line_a=a.line if a else None,
        line_b=b.line if b else None,
        completion=row.completion,
        fields=(FieldDifference(field=ROW, a=there if a else None, b=there if b else None),),
    )


def _text(values: dict[str, Any], name: str) -> str | None:
    return _json(values[name]) if name in values else None


def _json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(to_json(value), ensure_ascii=False)
