"""The answer of `el diff` as text for a terminal: what was computed first, then what differs around it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from explicit_learning.errors.invisible import escaped
from explicit_learning.files.schema import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from explicit_learning.verify.diff.comparison import Comparability, ComparedRun, Diff, PlanSection
    from explicit_learning.verify.diff.computed import Compared, Computed
    from explicit_learning.verify.diff.provenance import FactDifference, Section
    from explicit_learning.verify.diff.rows import Parting

__all__ = ["diff_text"]

WIDTH = 96
SHOWN = 8  # differences of a section, or fields of a row; --json has all
NAMED = 12  # facts that are the same and are named
COUNTED = {"launches", "packages"}  # sections whose facts have no telling names
INDENT = "    "
BEFORE = 12  # characters that both values share and that are shown before the first that differs


def diff_text(found: Diff) -> str:
    """Return the answer as lines of at most 96 characters, where names allow it."""
    lines = [
        _run("A", found.a),
        _run("B", found.b),
        "",
        *_verdict(found),
        *_comparability(found.comparability),
        "",
        *_computed(found.computed),
        "",
        *_plan(found.plan),
        *(line for section in found.sections for line in _section(section)),
    ]
    return "\n".join(lines)


def _run(name: str, run: ComparedRun) -> str:
    steps = f"step {run.steps} of {run.planned_steps}"
    return f"{name}: {escaped(run.place)}\n{INDENT}run {run.run_id}, arm {run.arm}, {run.status}, {steps}"


def _verdict(found: Diff) -> Iterator[str]:
    computed = found.computed
    if found.identical:
        rows = "rows, losses" if any(each.rows and "trace" in each.file for each in computed.files) else "losses"
        end = "at every step" if found.a.status == "completed" == found.b.status else f"up to step {found.a.steps}"
        yield f"identical: the same {rows} and adapters {end}"
    elif computed.first is not None:
        yield f"different from step {computed.first.step} on:"
        yield from _parting(computed.first)
    elif any(each.rows for each in computed.files):
        yield "no difference in what both computed, but one goes further or computed something else as well"
    else:
        yield "nothing to compare: the runs have computed nothing of the same kind yet"


def _parting(parting: Parting) -> Iterator[str]:
    """Yield where two runs part: the file, the lines, the completion, and the fields with both values."""
    lines = sorted({line for line in (parting.line_a, parting.line_b) if line is not None})
    if len(lines) == 2:  # noqa: PLR2004 - one line in each run
        where = f"{parting.file}, line {parting.line_a} in A and {parting.line_b} in B"
    else:
        where = f"{parting.file}:{lines[0]}" if lines else parting.file
    if parting.completion is not None:
        where += f", completion {parting.completion}"
    yield from _wrapped(where, INDENT)
    if lines:
        yield from _pairs([(each.field, each.a, each.b) for each in parting.fields], INDENT * 2)
    else:
        yield from _wrapped(f"tensors that differ: {len(parting.fields)}, first {parting.fields[0].field}", INDENT * 2)


def _comparability(found: Comparability) -> Iterator[str]:
    if found.comparable:
        yield "comparable as arms: the same slots, and nothing but the arm may differ"
        return
    slots = {None: "SFT has no comparison slots", True: "the same slots", False: "other slots"}[found.same_slots]
    besides = f"; besides the arm these differ: {', '.join(found.besides_the_arm)}" if found.besides_the_arm else ""
    yield from _wrapped(f"not comparable as arms: {slots}{besides}", "")


def _computed(computed: Computed) -> Iterator[str]:
    yield "computed"
    for each in computed.files:
        yield from _wrapped(f"{each.file}: {_extent(each)}", INDENT)
        if each.parting is not None and each.parting != computed.first:
            yield from _parting_fields(each.parting)
    for text in (*computed.in_one_alone, *computed.not_kept):
        yield from _wrapped(text, INDENT)


def _parting_fields(parting: Parting) -> Iterator[str]:
    if parting.line_a is not None or parting.line_b is not None:
        yield from _pairs([(each.field, each.a, each.b) for each in parting.fields], INDENT * 2)


def _extent(each: Compared) -> str:
    tensors = each.file.endswith(".safetensors")
    if each.parting is None:
        return f"the same, {each.rows} {'tensors' if tensors else 'rows'}"
    if tensors:
        different = len(each.parting.fields)
        return f"{different} of {each.rows + different} tensors different"
    return f"{each.rows} rows are the same, then step {each.parting.step} is different"


def _plan(plan: PlanSection) -> Iterator[str]:
    different = len(plan.differences)
    yield f"plan: {different} of {plan.same + different} fields different" if different else "plan: the same"
    yield from _facts(plan.differences)
    if plan.labels:
        yield from _wrapped(f"names and paths that differ: {', '.join(each.pointer for each in plan.labels)}", INDENT)


def _section(section: Section) -> Iterator[str]:
    name, different = section.name, len(section.differences)
    names = _names(name, section.same)
    named = len(names) <= NAMED and name not in COUNTED
    same = ", ".join(names) if named else f"{len(names)} in all"
    if different:
        yield f"{name}: {different} of {len(names) + len(section.unknown) + different} different"
        yield from _facts(section.differences)
        if names and named:
            yield from _wrapped(f"the same: {same}", INDENT)
    else:
        yield from _wrapped(f"{name}: the same" + (f" ({same})" if names else ""), "")
    if section.unknown:
        yield from _wrapped(f"not known of either run: {', '.join(_names(name, section.unknown))}", INDENT)


def _names(section: str, places: Sequence[str]) -> list[str]:
    return [place.lstrip("/").removeprefix(f"{section}/") for place in places]


def _facts(found: Sequence[FactDifference]) -> Iterator[str]:
    yield from _pairs([(each.pointer, _joined(each.a), _joined(each.b)) for each in found], INDENT)


def _joined(values: tuple[str, ...]) -> str | None:
    return " | ".join(values) if values else None


def _pairs(found: Sequence[tuple[str, str | None, str | None]], indent: str) -> Iterator[str]:
    """Yield names with both values: on one line if they fit, else each value on its own."""
    for name, a, b in found[:SHOWN]:
        line = f"{indent}{escaped(name)}: A {_text(a)}, B {_text(b)}"
        if len(line) <= WIDTH:
            yield line
            continue
        yield f"{indent}{escaped(name)}:"
        one, other = _shortened(_text(a), _text(b), WIDTH - len(indent) - len(INDENT) - 2)
        yield from (f"{indent}{INDENT}A {one}", f"{indent}{INDENT}B {other}")
    if len(found) > SHOWN:
        yield f"{indent}and {len(found) - SHOWN} more (--json has all)"


def _text(value: str | None) -> str:
    return MISSING if value is None else escaped(value)


def _shortened(a: str, b: str, limit: int) -> tuple[str, str]:
    """Return two texts cut to a length; where they share a long beginning, it is cut off, too."""
    if max(len(a), len(b)) > limit:
        common = next((place for place, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), 0)
        start = common - BEFORE if common > limit // 2 else 0
        a, b = (f"…{text[start:]}" if start else text for text in (a, b))
    one, other = (text if len(text) <= limit else f"{text[: limit - 1]}…" for text in (a, b))
    return one, other


def _wrapped(text: str, indent: str) -> Iterable[str]:
    after = f"{indent}{INDENT}"
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=after,
        break_long_words=False,
        break_on_hyphens=False,
    )
