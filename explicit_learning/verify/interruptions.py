"""Whether what a run records about its interruptions holds: resume audits, the smoke boundary, compared outputs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explicit_learning.completion.smoke_proof import FIX, broken_smoke_rules
from explicit_learning.errors import Context
from explicit_learning.rundir import layout
from explicit_learning.rundir.completion_marker import AuditEntry, ResumeProbe
from explicit_learning.rundir.resume_audit import audit_faults, compare_components, required_loaders
from explicit_learning.verify.boundary import boundary_faults, stored_components
from explicit_learning.verify.compared_outputs import comparison_faults
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
    yield from boundary_faults(tree, record, hashes)
    yield from comparison_faults(tree, record, hashes)


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
    yield from _boundary(file, audit, record, hashes)
    for number in range(len(audit.ranks)):
        yield from _rank(tree, file, audit, number)


def _boundary(file: str, audit: ResumeAudit, record: RunRecord, hashes: Mapping[str, str]) -> Iterator[Fault]:
    """What an audit tells of the boundary and of the processes on both sides of it follows from both files."""
    if audit.boundary is None or record.boundary is None:
        return
    sha256 = hashes.get(layout.SMOKE_BOUNDARY)
    nonces = [rank.process_nonce for rank in record.boundary.ranks]
    distinct = set(nonces).isdisjoint(rank.process_nonce for rank in audit.ranks)
    source = f"as in {layout.SMOKE_BOUNDARY}"
    yield from _equal(file, "/boundary/file_sha256", audit.boundary.file_sha256, sha256, "the boundary's hash")
    yield from _equal(file, "/boundary/process_nonces", list(audit.boundary.process_nonces), nonces, source)
    found = audit.boundary.distinct_processes
    yield from _equal(file, "/boundary/distinct_processes", found, distinct, "as the names of both processes say")


def _rank(tree: Tree, file: str, audit: ResumeAudit, number: int) -> Iterator[Fault]:
    """What an audit concludes of a rank follows from its digests; those of the checkpoint are in it, if it is there."""
    rank, pointer = audit.ranks[number], f"/ranks/{number}"
    components = {item.name: item.at_checkpoint for item in rank.components}
    loaded = {item.name: item.as_loaded for item in rank.components}
    again = compare_components(components, loaded)
    yield from _equal(file, f"{pointer}/components", list(rank.components), list(again), "as its own digests say")
    if (stored := stored_components(tree, audit.checkpoint, rank.rank)) is not None:
        source = f"as in {audit.checkpoint}/{layout.state_digests_file(rank.rank)}"
        yield from _equal(file, f"{pointer}/components", components, stored, source)
    required = required_loaders(reference=loaded.get("reference_adapter") is not None)
    missing = [name for name in required if name not in rank.loaders_called]
    yield from _equal(file, f"{pointer}/loaders_missing", list(rank.loaders_missing), missing, "as loaders_called says")


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
    if record.launches:
        last = record.launches[-1].start
        audits = record.audits.values()
        for fault in broken_smoke_rules(plan, audits, launch_id=last.launch_id, checkpoint=last.checkpoint):
            yield CONTEXT.fault(
                file=tree.place(layout.launch_start_file(last.launch_id)),
                pointer=fault.pointer,
                found=fault.found,
                expected=fault.expected,
            )
