"""Everything that a run directory says of itself, read once: every document by its schema, and what is wrong with any.

Nothing stops at the first fault. What cannot be read is missing from the record, and the rules that need it are left
out: its own fault explains them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from explicit_learning.errors import Refusal
from explicit_learning.files.jsonl import stream_rows
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.schema import validate
from explicit_learning.files.tree import tree_bytes, tree_document, tree_json
from explicit_learning.files.typed_json import RESTORE
from explicit_learning.plan.reading import plan_of_bytes
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoint_mark import CheckpointMark
from explicit_learning.rundir.completion_marker import CompletionMarker
from explicit_learning.rundir.events import read_events
from explicit_learning.rundir.launches import readable_launches
from explicit_learning.rundir.output_comparison import OutputComparison
from explicit_learning.rundir.resume_audit import ResumeAudit
from explicit_learning.rundir.run_manifest import run_manifest_of
from explicit_learning.rundir.smoke_boundary import SmokeBoundary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from explicit_learning.errors import FaultCollector
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.events import Event
    from explicit_learning.rundir.launches import Launch
    from explicit_learning.rundir.run_manifest import RunManifest

__all__ = ["RunRecord", "checkpoints_of", "read_record"]

GATE = "record"
T = TypeVar("T")
# Documents of checkpoints that no rule reads, by the schema that they must keep; None asks for strict JSON.
OTHER_DOCUMENTS = (
    (re.compile(r"checkpoint-[1-9][0-9]*/counters-rank-[0-9]+\.json"), "counters"),
    (re.compile(r"checkpoint-[1-9][0-9]*/state-digests-rank-[0-9]+\.json"), "state-digests"),
    (re.compile(r"checkpoint-[1-9][0-9]*/accounting/rank-[0-9]+\.json"), "rank-frontiers"),
    (re.compile(r"(.*/)?adapter_config\.json"), None),
)


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """The documents of a run; ``None`` and empty stand for what is not there, or could not be read.

    Attributes:
        plan: The plan.
        manifest: The run manifest.
        marker: The completion marker.
        launches: The launches in order.
        marks: The mark of each complete checkpoint, by folder.
        audits: The resume audits, by file.
        boundary: A smoke run's boundary.
        comparison: A smoke run's comparison of outputs.
        events: The newest events about gates and about rows that were set aside, in order: nothing else is compared.
        metrics: The rows of the metrics.
        unreadable: Whether anything could not be read.
    """

    plan: Plan | None = None
    manifest: RunManifest | None = None
    marker: CompletionMarker | None = None
    launches: tuple[Launch, ...] = ()
    marks: dict[str, CheckpointMark] = field(default_factory=dict)
    audits: dict[str, ResumeAudit] = field(default_factory=dict)
    boundary: SmokeBoundary | None = None
    comparison: OutputComparison | None = None
    events: list[Event] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    unreadable: bool = False


def read_record(tree: Tree, collector: FaultCollector) -> RunRecord:
    """Read every document of a run.

    Args:
        tree: The run's files.
        collector: Gets the faults.
    """
    record = RunRecord()
    reader = _Reader(tree, collector, record)
    record.plan = reader.attempt(lambda: _plan(tree))
    record.manifest = reader.attempt(lambda: run_manifest_of(tree))
    record.marker = reader.optional(layout.COMPLETION_MARKER, CompletionMarker)
    if record.manifest is not None:
        record.launches, faults = reader.attempt(lambda: readable_launches(tree)) or ((), [])
        collector.extend(faults)
    for folder in checkpoints_of(tree):
        if mark := reader.optional(f"{folder}/{layout.CHECKPOINT_MARK}", CheckpointMark):
            record.marks[folder] = mark
    for name in tree.files:
        if name.startswith(f"{layout.RESUME_AUDITS}/") and (audit := reader.optional(name, ResumeAudit)):
            record.audits[name] = audit
    record.boundary = reader.optional(layout.SMOKE_BOUNDARY, SmokeBoundary)
    record.comparison = reader.optional(layout.OUTPUT_COMPARISON, OutputComparison)
    record.metrics = reader.attempt(lambda: list(_rows(tree, layout.METRICS))) or []
    record.events, _ = reader.attempt(lambda: read_events(tree, "gates", "set-aside")) or ([], 0)
    _check_others(tree, collector)
    return record


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads documents, collects why one cannot be read, and goes on."""

    tree: Tree
    collector: FaultCollector
    record: RunRecord

    def attempt(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Refusal as refusal:
            self.collector.extend(refusal.faults)
        except OSError as error:
            self.collector.add(read_fault(error, Path(error.filename or self.tree.place("")), gate=GATE))
        self.record.unreadable = True
        return None

    def optional(self, name: str, kind: type[T]) -> T | None:
        """Return a document that need not be there."""
        if name not in self.tree.files:
            return None
        return self.attempt(lambda: tree_document(self.tree, name, kind, gate=GATE, fix=RESTORE))


def checkpoints_of(tree: Tree) -> list[str]:
    """Return the folders of a run's checkpoints, complete or not, by step."""
    folders = {name.split("/", maxsplit=1)[0] for name in tree.files if "/" in name}
    return sorted((name for name in folders if layout.step_of(name)), key=lambda name: layout.step_of(name) or 0)


def _plan(tree: Tree) -> Plan:
    data = tree_bytes(tree, layout.PLAN, gate=GATE, fix=RESTORE)
    document = plan_of_bytes(data, Path(tree.place(layout.PLAN)))
    if document.plan is None:
        raise Refusal(document.faults)
    return document.plan


def _rows(tree: Tree, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file that grows line by line; none if it is not there."""
    if name in tree.files:
        with tree.open(name) as stream:
            yield from (row for _, row in stream_rows(stream, file=tree.place(name), gate=GATE))


def _check_others(tree: Tree, collector: FaultCollector) -> None:
    """Check the documents that no rule reads."""
    for name in tree.files:
        if name.startswith((f"{layout.SET_ASIDE}/", f"{layout.UNINTERRUPTED}/")):
            continue
        for pattern, schema in OTHER_DOCUMENTS:
            if not pattern.fullmatch(name):
                continue
            try:
                value = tree_json(tree, name, gate=GATE, fix=RESTORE)
            except Refusal as refusal:
                collector.extend(refusal.faults)
            else:
                if schema is not None:
                    collector.extend(validate(value, schema, gate=GATE, file=tree.place(name)))
