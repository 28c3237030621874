"""What two runs computed, compared: traces, metrics and adapters, as far as both go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import log_file
from explicit_learning.errors import Refusal
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.typed_json import RESTORE
from explicit_learning.model_files.tensors import tensors_sha256, tree_tensors
from explicit_learning.rundir import layout
from explicit_learning.verify.diff.rows import (
    GATE,
    ComparedFile,
    FieldDifference,
    Parting,
    by_step,
    compare_rows,
    first_parting,
    in_order,
    metrics_rows,
    trace_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.files.tree import Tree
    from explicit_learning.model_files.tensors import TensorDigest
    from explicit_learning.verify.diff.run_files import RunFiles

__all__ = ["Compared", "Computed", "compare_computed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A file that both runs have, as far as it is equal.

    Attributes:
        file: The file, relative to either run directory.
        rows: Equal rows before the first difference; of an adapter, equal tensors.
        step: The step of the last equal row, or of the adapter; 0 where nothing is equal.
        parting: Where the runs part; ``None`` if they do not.
    """

    file: str
    rows: int
    step: int
    parting: Parting | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What both runs computed.

    Attributes:
        identical: Whether anything was compared, nothing differs, and nothing but checkpoints is in one run alone.
        first: The first place at which they part; ``None`` if they do not.
        files: Every file that was compared.
        in_one_alone: What only one run computed, and so was not compared, as sentences.
        not_kept: Checkpoints that only one run kept, as sentences: they decide nothing.
    """

    identical: bool
    first: Parting | None
    files: tuple[Compared, ...]
    in_one_alone: tuple[str, ...]
    not_kept: tuple[str, ...]


def compare_computed(a: RunFiles, b: RunFiles) -> Computed:
    """Compare what two runs computed.

    Raises:
        Refusal: If a trace, the metrics or an adapter is missing, unreadable or damaged.
    """
    alone: list[str] = []
    not_kept: list[str] = []
    files = [*_traces(a, b, alone), *_metrics(a, b, alone), *_checkpoints(a, b, not_kept), *_final(a, b, alone)]
    if a.steps != b.steps:
        alone.insert(0, f"A goes to step {a.steps}, B to step {b.steps}")
    first = first_parting(each.parting for each in files)
    return Computed(
        identical=first is None and not alone and any(each.rows for each in files),
        first=first,
        files=tuple(files),
        in_one_alone=tuple(alone),
        not_kept=tuple(not_kept),
    )


def _traces(a: RunFiles, b: RunFiles, alone: list[str]) -> Iterator[Compared]:
    if a.plan.samples != b.plan.samples:
        alone.append(f"completions: only {'A' if a.plan.samples else 'B'} samples any")
        return
    if not a.plan.samples:
        return
    ranks = [each.plan.hardware.world_size for each in (a, b)]
    whole = _both_complete_alike(a, b)
    for rank in range(min(ranks)):
        file = log_file("trace", rank)
        if without := [name for name, each in (("A", a), ("B", b)) if not _has_trace(each, file)]:
            if len(without) == 1:
                alone.append(f"{file}: {without[0]} has not sampled yet")
            continue
        pairs = in_order(*(trace_rows(each.tree, each.plan, rank, torn_end=each.torn_end) for each in (a, b)))
        yield _as_compared(compare_rows(file, pairs, whole=whole, same_fields=True), alone)
    if ranks[0] != ranks[1]:
        more = "A" if ranks[0] > ranks[1] else "B"
        alone.append(f"traces of ranks {min(ranks)} to {max(ranks) - 1}: only {more} has so many ranks")


def _has_trace(run: RunFiles, file: str) -> bool:
    """Whether a run has a trace, or should have: only one that never sampled has none."""
    return run.marker is not None or bool(run.steps) or file in run.tree.files


def _both_complete_alike(a: RunFiles, b: RunFiles) -> bool:
    """Whether both runs are complete with as many steps: then neither may have a row that the other has not."""
    return a.marker is not None and b.marker is not None and a.steps == b.steps


def _metrics(a: RunFiles, b: RunFiles, alone: list[str]) -> Iterator[Compared]:
    if without := [name for name, each in (("A", a), ("B", b)) if not each.has_metrics]:
        if len(without) == 1:
            alone.append(f"{layout.METRICS}: {without[0]} has not logged a step yet")
        return
    intervals = [each.plan.optimisation.logging_interval for each in (a, b)]
    found = compare_rows(
        layout.METRICS,
        by_step(*(metrics_rows(each.tree, torn_end=each.torn_end) for each in (a, b))),
        whole=_both_complete_alike(a, b) and intervals[0] == intervals[1],
        same_fields=a.plan.arm == b.plan.arm,
    )
    yield _as_compared(found, alone)
    if found.single_rows:
        alone.append(f"{layout.METRICS}: steps that only one run logs: {found.single_rows}")
    for name, fields in (("A", found.fields_of_a), ("B", found.fields_of_b)):
        if fields:
            alone.append(f"{layout.METRICS}: only {name} logs {', '.join(sorted(fields))}")


def _as_compared(found: ComparedFile, alone: list[str]) -> Compared:
    """Return a compared file; note it if one run's rows go on alone."""
    if found.parting is None and found.ends_first is not None:
        ends, goes_on = ("A", "B") if found.ends_first == "a" else ("B", "A")
        alone.append(f"{found.file}: compared up to step {found.step}, where {ends} ends; {goes_on} goes on")
    return Compared(file=found.file, rows=found.rows, step=found.step, parting=found.parting)


def _checkpoints(a: RunFiles, b: RunFiles, not_kept: list[str]) -> Iterator[Compared]:
    for step in sorted({*a.checkpoints, *b.checkpoints}):
        folder = layout.checkpoint_name(step)
        if step in a.checkpoints and step in b.checkpoints:
            yield _adapter(a.tree, b.tree, f"{folder}/{layout.ADAPTER_WEIGHTS}", step)
        else:
            not_kept.append(f"{folder}: only {'A' if step in a.checkpoints else 'B'} has it")


def _final(a: RunFiles, b: RunFiles, alone: list[str]) -> Iterator[Compared]:
    file = f"{layout.FINAL_ADAPTER}/{layout.ADAPTER_WEIGHTS}"
    if without := [name for name, each in (("A", a), ("B", b)) if each.marker is None]:
        if len(without) == 1:
            alone.append(f"{file}: {without[0]} is not complete")
    elif a.steps != b.steps:
        alone.append(f"{file}: not of equal steps ({a.steps} and {b.steps})")
    else:
        yield _adapter(a.tree, b.tree, file, a.steps)


def _adapter(a: Tree, b: Tree, file: str, step: int) -> Compared:
    """Compare the tensors of an adapter that both runs have."""
    ours, theirs = _tensors(a, file), _tensors(b, file)
    names = sorted(ours.keys() | theirs.keys())
    fields = tuple(
        FieldDifference(field=name, a=_digest(ours, name), b=_digest(theirs, name))
        for name in names
        if ours.get(name) != theirs.get(name)
    )
    parting = Parting(step=step, file=file, line_a=None, line_b=None, completion=None, fields=fields)
    equal = len(names) - len(fields)
    return Compared(file=file, rows=equal, step=0 if fields else step, parting=parting if fields else None)


def _tensors(tree: Tree, file: str) -> dict[str, TensorDigest]:
    try:
        return tree_tensors(tree, file)
    except OSError as error:
        expected = "an adapter's tensors"
        fault = read_fault(error, Path(tree.place(file)), gate=GATE, expected=expected, missing_fix=RESTORE)
        raise Refusal(fault) from None


def _digest(tensors: dict[str, TensorDigest], name: str) -> str | None:
    """Return the digest of one tensor, with its dtype and shape; ``None`` if there is none of that name."""
    return tensors_sha256({name: tensors[name]}) if name in tensors else None
