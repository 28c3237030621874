"""A dataset's figures as text: one table for rows, one for answers, and lines for the rest."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from explicit_learning.data.rows import Relation
from explicit_learning.errors import found_text
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table

    from explicit_learning.data.summary.files import FileSummary
    from explicit_learning.data.summary.refused import Refused
    from explicit_learning.data.summary.spread import Spread
    from explicit_learning.data.summary.summary import DataSummary, Images, Operator

__all__ = ["dataset_text"]

WIDTH = 120
ANSWERS = 5
REASONS = 20
LINE = 100
NOTHING = "–"


def dataset_text(summary: DataSummary) -> str:
    """Return the figures as a person reads them on a terminal of 120 columns."""
    parts = [
        f"{escaped(summary.dataset)}, made by {escaped(summary.generator)}; identity {summary.sha256}",
        _rows_table(summary.files),
        _lengths_table(summary.files),
        _answers_table(summary.files),
        "\n".join(_image_lines(summary.images)),
        "\n".join(_operator_lines(summary.operators)),
        "\n".join(_refused_lines(summary.refused)),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part).rstrip("\n")


def _rows_table(files: Sequence[FileSummary]) -> str:
    table = _table("rows", "file", "rows", "groups", *Relation, "answer\ntypes", "evidence\non FULL")
    for file in files:
        marked = "" if file.evidence is None else _counts(to_json(file.evidence))
        kind = ", ".join(file.record_kinds) or file.kind
        table.add_row(
            f"{escaped(file.path)}\n  {kind}, split {file.split}",
            f"{file.rows:,}",
            f"{file.groups:,}",
            *(f"{file.relations[relation]:,}" for relation in Relation),
            _counts(file.answer_types),
            marked or NOTHING,
        )
    return _printed(table) + "".join(f"{line}\n" for line in _group_lines(files))


def _group_lines(files: Iterable[FileSummary]) -> Iterator[str]:
    """Yield which relations the groups of a file have, where that is not the same for all."""
    for file in files:
        if file.kind != "sft" and len(file.groups_with) > 1:
            sets = ", ".join(f"{each.groups:,} with {' + '.join(each.relations)}" for each in file.groups_with)
            yield f"groups of {escaped(file.path)}: {sets}"


def _lengths_table(files: Sequence[FileSummary]) -> str:
    with_tokens = any(file.tokens for file in files)
    more = ("prompt\ntokens", "of these\nfor images", "longest prompt") if with_tokens else ()
    table = _table(
        "lengths: smallest / median / largest",
        "file",
        "question\ncharacters",
        "answer\ncharacters",
        "images\na row",
        *more,
    )
    for file in files:
        tokens = file.tokens
        cells = [_spread(file.question_characters), _spread(file.answer_characters), _spread(file.images_per_prompt)]
        if with_tokens:
            longest = escaped(tokens.longest) if tokens else NOTHING
            cells += [_spread(tokens.prompt if tokens else None), _spread(tokens.images if tokens else None), longest]
        table.add_row(escaped(file.path), *cells)
    return _printed(table)


def _answers_table(files: Sequence[FileSummary]) -> str:
    table = _table(
        "right answers, once an item", "file", "type", "items", "distinct", "share of\nthe first", "most frequent"
    )
    for file in files:
        for each in file.answers:
            shown = each.most_frequent[:ANSWERS]
            frequent = ", ".join(f"{found_text(count.answer)} {count.items:,}" for count in shown)
            rest = each.distinct - len(shown)
            table.add_row(
                escaped(file.path),
                each.answer_type,
                f"{each.items:,}",
                f"{each.distinct:,}",
                f"{100 * each.share:.0f} %{' (!)' if each.dominates else ''}",
                frequent + (f" and {rest:,} more" if rest else ""),
            )
    return _printed(table) if table.row_count else ""


def _image_lines(images: Images) -> Iterator[str]:
    masks = f" and {images.masks:,} masks" if images.masks else ""
    yield f"images: {images.images:,}{masks}, {images.bytes / 1e6:,.1f} MB"
    if images.width and images.height:
        yield f"  width {_spread(images.width)}, height {_spread(images.height)} pixels (smallest / median / largest)"
    sizes = ", ".join(f"{size.width} × {size.height} ({size.images:,})" for size in images.sizes)
    rest = images.distinct_sizes - len(images.sizes)
    if sizes:
        yield f"  most frequent sizes: {sizes}{f' and {rest:,} more' if rest else ''}"


def _operator_lines(operators: Sequence[Operator]) -> Iterator[str]:
    if not operators:
        return
    yield "operators that removed the evidence (rows of the relation MISSING):"
    for each in operators:
        seen = ""
        if each.evaluation:
            seen = ", seen in training" if each.training else ", unseen in training"
        yield f"  {found_text(each.state)}: {each.training:,} rows to train on, {each.evaluation:,} held out{seen}"


def _refused_lines(refused: Refused | None) -> Iterator[str]:
    if refused is None:
        return
    yield f"rows left out of the source: {refused.rows:,}"
    for kind in refused.kinds[:REASONS]:
        yield _cut(f"  {kind.rows:,} × {escaped(kind.field)}: expected {escaped(kind.expected)}")
        for example in kind.examples:
            name = "" if example.id is None else f" ({escaped(example.id)})"
            yield _cut(f"      {escaped(example.where)}{name}: found {escaped(example.found)}")
    rest = len(refused.kinds[REASONS:]) + refused.more_kinds
    if rest:
        yield f"  and {rest:,} more reasons"


def _table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    left = {"file", "type", "answer\ntypes", "evidence\non FULL", "most frequent", "longest prompt"}
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return table


def _printed(table: Table) -> str:
    from rich.console import Console

    text = io.StringIO()
    # What a cell holds is text, not rich's own markup: an answer may be "[b]".
    Console(file=text, width=WIDTH, markup=False, emoji=False, highlight=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _counts(counts: dict[str, int]) -> str:
    return "\n".join(f"{name} {count:,}" for name, count in counts.items() if count)


def _spread(spread: Spread | None) -> str:
    return NOTHING if spread is None else f"{spread.minimum:,} / {spread.median:,} / {spread.maximum:,}"


def _cut(text: str) -> str:
    return text if len(text) <= LINE else f"{text[: LINE - 1]}…"
