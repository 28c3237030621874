"""Whether what a run records about its interruptions holds: resume audits, the smoke boundary, compared outputs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explicit_learning.completion.smoke_proof import FIX
from explicit_learning.errors import Context, Refusal
from explicit_learning.files.tree import tree_document
from explicit_learning.files.typed_json import RESTORE
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.rundir.completion_marker import AuditEntry, ResumeProbe
from explicit_learning.rundir.resume_audit import audit_faults
from explicit_learning.rundir.state_digests import StateDigests
from explicit_learning.verify.contradictions import contradiction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.resume_audit import ResumeAudit
    from explicit_learning.verify.record import RunRecord

__all__ = ["interruption_faults"]

CONTEXT = Context(gate="interruptions", fix=FIX)


def interruption_faults(tree: Tree, record: RunRecord, hashes: Mapping[str, str]) -> Iterator[Fault]:
    """Yield everything that is wrong with a run's audits, its boundary and its comparison of outputs.

    Args:
        tree: The run's files.
        record: What was read of its documents.
        hashes: SHA-256 of each file, by name.
    """
    for name, audit in record.audits.items():
        yield from _audit(tree, record, name, audit, hashes)
    if record.marker is not None and not record.unreadable:
        yield from _probe(tree, record, hashes)
    yield from _comparison(tree, record, hashes)


_equal = partial(contradiction, CONTEXT)


def _audit(tree: Tree, record: RunRecord, name: str, audit: ResumeAudit, hashes: Mapping[str, str]) -> Iterator[Fault]:
    file, wrong = tree.place(name), audit_faults(audit)
    yield from _equal(file, "/passed", audit.passed, not wrong, "as its own comparisons say")
    if record.marker is not None:
        yield from wrong  # a run that is complete despite a failed audit
    yield from _equal(file, "", name, layout.resume_audit_file(audit.checkpoint, audit.launch_id), "its own name")
    yield from _equal(file, "/step", audit.step, layout.step_of(audit.checkpoint), "the step of its checkpoint")
    if record.plan is not None and record.manifest is not None:
        named = {
            "run_id": record.plan.run_id,
            "frozen_config_sha256": record.plan.frozen_config_sha256,
            "run_manifest_sha256": record.manifest.run_manifest_sha256,
        }
        for field, expected in named.items():
            yield from _equal(file, f"/{field}", getattr(audit, field), expected, "as of this run")
    launches = {launch.start.launch_id: launch.start.checkpoint for launch in record.launches}
    yield from _equal(file, "/checkpoint", audit.checkpoint, launches.get(audit.launch_id), "as its launch recorded")
    if audit.boundary is not None:
        sha256 = hashes.get(layout.SMOKE_BOUNDARY)
        yield from _equal(file, "/boundary/file_sha256", audit.boundary.file_sha256, sha256, "the boundary's hash")
    for rank in audit.ranks:
        yield from _against_checkpoint(tree, file, audit, rank.rank)


def _against_checkpoint(tree: Tree, file: str, audit: ResumeAudit, rank: int) -> Iterator[Fault]:
    """What an audit calls the checkpoint's digests are those in the checkpoint, if it is still there."""
    name = f"{audit.checkpoint}/{layout.state_digests_file(rank)}"
    if name not in tree.files:
        return
    try:
        digests = tree_document(tree, name, StateDigests, gate=CONTEXT.gate, fix=RESTORE)
    except Refusal:
        return  # the reading of the record has said so
    found = {item.name: item.at_checkpoint for item in audit.ranks[rank].components} if rank < len(audit.ranks) else {}
    yield from _equal(file, f"/ranks/{rank}/components", found, digests.components, f"as in {name}")


def _probe(tree: Tree, record: RunRecord, hashes: Mapping[str, str]) -> Iterator[Fault]:
    """The marker lists every audit and the boundary; a smoke run has proven that a new process restored its state."""
    marker, plan = record.marker, record.plan
    if marker is None or plan is None:
        return
    file = tree.place(layout.COMPLETION_MARKER)
    expected = {
        AuditEntry(file=name, sha256=hashes.get(name, ""), checkpoint=audit.checkpoint, passed=audit.passed)
        for name, audit in record.audits.items()
    }
    boundary = hashes.get(layout.SMOKE_BOUNDARY)
    found = marker.resume_probe
    if not expected and boundary is None:
        yield from _equal(file, "/resume_probe", found, None, "for the run has no audit and no boundary")
    elif found is None or set(found.audits) != expected or len(found.audits) != len(expected):
        right = ResumeProbe(boundary_sha256=boundary, audits=tuple(sorted(expected, key=lambda entry: entry.file)))
        yield from _equal(file, "/resume_probe", found, right, f"the files in {layout.RESUME_AUDITS}/")
    else:
        yield from _equal(file, "/resume_probe/boundary_sha256", found.boundary_sha256, boundary, "the boundary's hash")
    if plan.run_mode == "smoke" and record.launches:
        last, wanted = record.launches[-1].start, layout.checkpoint_name(SMOKE_STOP_STEP)
        yield from _equal(
            tree.place(layout.launch_start_file(last.launch_id)),
            "/checkpoint",
            last.checkpoint,
            wanted,
            "as a smoke run resumes",
        )
        passed = [
            audit
            for audit in record.audits.values()
            if audit.launch_id == last.launch_id and audit.passed and len(audit.ranks) == plan.hardware.world_size
        ]
        if len(passed) != 1:
            expected_text = f"one resume audit of the last launch, passed on {plan.hardware.world_size} ranks"
            where = tree.place(layout.RESUME_AUDITS)
            yield CONTEXT.fault(file=where, found=f"{len(passed)} such audits", expected=expected_text)


def _comparison(tree: Tree, record: RunRecord, hashes: Mapping[str, str]) -> Iterator[Fault]:
    comparison, file = record.comparison, tree.place(layout.OUTPUT_COMPARISON)
    if comparison is None:
        if record.plan is not None and record.plan.run_mode == "smoke" and record.marker is not None:
            fix = "run `el smoke` again with the same folder: it goes on with its third phase"
            expected = "the comparison with an uninterrupted run"
            yield CONTEXT.fault(file=file, found="no such file", expected=expected, fix=fix)
        return
    sha256 = hashes.get(layout.COMPLETION_MARKER)
    source = f"the hash of {layout.COMPLETION_MARKER}"
    yield from _equal(file, "/completion_marker_sha256", comparison.completion_marker_sha256, sha256, source)
    adapters = comparison.final_adapter_tensors
    same = adapters.resumed == adapters.uninterrupted and all(
        digests.resumed == digests.uninterrupted for step in comparison.steps for digests in (step.trace, step.metrics)
    )
    yield from _equal(file, "/equal", comparison.equal, same, "as its own digests say")
    if record.marker is not None:
        expected_digest = record.marker.identities.final_adapter_tensors_sha256
        where = f"as in {layout.COMPLETION_MARKER}"
        yield from _equal(file, "/final_adapter_tensors/resumed", adapters.resumed, expected_digest, where)
    if record.plan is not None and record.plan.determinism == "strict" and not comparison.equal:
        expected_text = "equal outputs: the plan's determinism is strict"
        yield CONTEXT.fault(file=file, pointer="/equal", found="outputs that differ", expected=expected_text)
