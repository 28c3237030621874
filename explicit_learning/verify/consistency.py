"""Whether a run's documents agree with each other and with its files.

Each record of a run repeats what others say: the marker names the manifest's hash, the manifest the marker's, each
launch the one before. All of it can be computed again, so all of it is, and a file that was changed together with the
hash that covers it still contradicts the rest.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explicit_learning.completion.launches import differences, launch_entries, machines_of
from explicit_learning.completion.marker import last_values
from explicit_learning.errors import Context
from explicit_learning.files.typed_json import field_names, to_json
from explicit_learning.model_files.tensors import tensors_sha256
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoint_mark import mark_faults
from explicit_learning.rundir.completion_marker import CheckpointEntry, Parameters
from explicit_learning.rundir.run_manifest import CompletionRecord, PlanIdentities, create_run_manifest
from explicit_learning.verify.adapter_files import (
    configuration_faults,
    read_tensors,
    saved_tensors,
    tensor_differences,
    trained_tensors,
)
from explicit_learning.verify.contradictions import contradiction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.model_files.tensors import TensorDigest
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker
    from explicit_learning.rundir.launches import Launch
    from explicit_learning.rundir.run_manifest import RunManifest
    from explicit_learning.verify.record import RunRecord

__all__ = ["consistency_faults"]

CONTEXT = Context(gate="consistency", fix="restore the run directory from a copy: its records contradict each other")


def consistency_faults(tree: Tree, record: RunRecord, hashes: Mapping[str, str]) -> Iterator[Fault]:
    """Yield every contradiction between a run's documents, and between them and its files.

    Args:
        tree: The run's files.
        record: What was read of its documents.
        hashes: SHA-256 of each file, by name.
    """
    plan, manifest, marker = record.plan, record.manifest, record.marker
    if plan is not None and manifest is not None:
        yield from _manifest(tree, plan, manifest, hashes)
        for folder, mark in record.marks.items():
            file = tree.place(f"{folder}/{layout.CHECKPOINT_MARK}")
            sha256 = manifest.run_manifest_sha256
            yield from mark_faults(mark, plan, folder=folder, file=file, run_manifest_sha256=sha256)
            if mark.step > (steps := plan.optimisation.max_steps):
                yield CONTEXT.fault(file=file, pointer="/step", found=str(mark.step), expected=f"at most {steps}")
        boundary = layout.checkpoint_name(SMOKE_STOP_STEP)
        if plan.run_mode == "smoke" and marker is not None and boundary not in record.marks:
            expected = "the checkpoint at which a smoke run stops, which stays"
            yield CONTEXT.fault(file=tree.place(boundary), found="no complete checkpoint", expected=expected)
    yield from _marked_files(tree, record, hashes)
    if manifest is not None:
        yield from _completion(tree, manifest, marker, hashes)
    if marker is None:
        return
    if plan is not None and manifest is not None:
        yield from _identities(tree, plan, manifest, marker, record.launches)
    if not record.unreadable:
        yield from _checkpoints(tree, record, marker, hashes)
    yield from _launches(tree, record, marker)
    yield from _adapter(tree, record, marker, hashes)
    yield from _log(tree, record, marker)


_different = partial(contradiction, CONTEXT)


def _manifest(tree: Tree, plan: Plan, manifest: RunManifest, hashes: Mapping[str, str]) -> Iterator[Fault]:
    file = tree.place(layout.RUN_MANIFEST)
    expected = create_run_manifest(plan, plan_sha256=hashes.get(layout.PLAN, "")).frozen
    for name in field_names(type(expected)):
        found = getattr(manifest.frozen, name)
        yield from _different(file, f"/frozen/{name}", found, getattr(expected, name), f"as in {layout.PLAN}")


def _completion(
    tree: Tree, manifest: RunManifest, marker: CompletionMarker | None, hashes: Mapping[str, str]
) -> Iterator[Fault]:
    """The manifest says that the run is complete if, and only if, the marker does."""
    file = tree.place(layout.RUN_MANIFEST)
    if marker is None:
        if manifest.status == "completed" and layout.COMPLETION_MARKER not in tree.files:
            expected = f"the file, for {layout.RUN_MANIFEST} says that the run is completed"
            yield CONTEXT.fault(file=tree.place(layout.COMPLETION_MARKER), found="no such file", expected=expected)
        return
    yield from _different(file, "/status", manifest.status, "completed", f"as {layout.COMPLETION_MARKER} is there")
    trained = manifest.frozen.run_mode == "main"
    yield from _different(file, "/trained", manifest.trained, trained, "as of a completed run of this mode")
    expected_record = CompletionRecord(
        optimizer_steps=marker.counts.optimizer_steps,
        running_commit=marker.identities.running_commit,
        running_dirty=marker.identities.running_dirty,
        frozen_commit=manifest.frozen.frozen_commit,
        run_manifest_sha256=manifest.run_manifest_sha256,
        frozen_config_sha256=manifest.frozen.frozen_config_sha256,
        completion_marker_sha256=hashes.get(layout.COMPLETION_MARKER, ""),
    )
    for name in field_names(CompletionRecord):
        found = getattr(manifest.completion, name, None)
        wanted = getattr(expected_record, name)
        yield from _different(file, f"/completion/{name}", found, wanted, f"as {layout.COMPLETION_MARKER} says")


def _identities(
    tree: Tree, plan: Plan, manifest: RunManifest, marker: CompletionMarker, launches: tuple[Launch, ...]
) -> Iterator[Fault]:
    file, frozen, own = tree.place(layout.COMPLETION_MARKER), manifest.frozen, marker.identities
    for name in field_names(PlanIdentities):
        expected = getattr(frozen.identities, name)
        yield from _different(file, f"/identities/{name}", getattr(own, name), expected, f"as in {layout.PLAN}")
    named = {
        "plan_sha256": frozen.plan_sha256,
        "frozen_config_sha256": frozen.frozen_config_sha256,
        "run_manifest_sha256": manifest.run_manifest_sha256,
        "frozen_commit": frozen.frozen_commit,
        "frozen_dirty": frozen.frozen_dirty,
    }
    if launches:
        code = launches[-1].start.nodes[0].code
        named |= {"running_commit": code.commit, "running_dirty": code.dirty}
    for name, expected in named.items():
        source = f"as in {layout.LAUNCHES}/" if name.startswith("running") else f"as in {layout.RUN_MANIFEST}"
        yield from _different(file, f"/identities/{name}", getattr(own, name), expected, source)
    for name in ("run_id", "run_mode", "arm", "seed", "data_seed"):
        expected = getattr(frozen, name)
        yield from _different(file, f"/{name}", getattr(marker, name), expected, f"as in {layout.RUN_MANIFEST}")
    yield from _different(file, "/trained", marker.trained, plan.run_mode == "main", "as of a run of this mode")
    for name in ("reward", "objective"):
        expected = to_json(getattr(plan, name))
        yield from _different(file, f"/{name}", getattr(marker, name), expected, f"as in {layout.PLAN}")


def _marked_files(tree: Tree, record: RunRecord, hashes: Mapping[str, str]) -> Iterator[Fault]:
    """The files of each complete checkpoint are exactly those of its mark."""
    for folder, mark in record.marks.items():
        prefix, own = f"{folder}/", f"{folder}/{layout.CHECKPOINT_MARK}"
        present = {name.removeprefix(prefix) for name in tree.files if name.startswith(prefix) and name != own}
        present = {name for name in present if layout.is_covered(f"{prefix}{name}")}
        for name in sorted(present - mark.files.keys()):
            expected = f"no file that {layout.CHECKPOINT_MARK} does not list"
            yield CONTEXT.fault(file=tree.place(f"{prefix}{name}"), found="a file", expected=expected)
        for name, entry in sorted(mark.files.items()):
            place, expected = tree.place(f"{prefix}{name}"), f"{entry.sha256}, as in {layout.CHECKPOINT_MARK}"
            if name not in present:
                yield CONTEXT.fault(file=place, found="no such file", expected=f"SHA-256 {expected}")
            elif (found := hashes.get(f"{prefix}{name}")) not in {None, entry.sha256}:
                yield CONTEXT.fault(file=place, found=f"SHA-256 {found}", expected=expected)
            elif (size := tree.files[f"{prefix}{name}"]) != entry.bytes:
                yield CONTEXT.fault(
                    file=tree.place(own),
                    pointer=f"/files/{name}/bytes",
                    found=f"{entry.bytes:,}",
                    expected=f"{size:,}, the length of the file",
                )


def _checkpoints(tree: Tree, record: RunRecord, marker: CompletionMarker, hashes: Mapping[str, str]) -> Iterator[Fault]:
    """The marker lists exactly the complete checkpoints."""
    expected = tuple(
        CheckpointEntry(
            name=folder,
            step=mark.step,
            mark_sha256=hashes.get(f"{folder}/{layout.CHECKPOINT_MARK}", ""),
            files={name: entry.sha256 for name, entry in mark.files.items()},
        )
        for folder, mark in record.marks.items()
    )
    file = tree.place(layout.COMPLETION_MARKER)
    names = [entry.name for entry in marker.checkpoints]
    wanted = [entry.name for entry in expected]
    yield from _different(file, "/checkpoints", names, wanted, "the complete checkpoints that are there")
    if names == wanted:
        for number, (entry, right) in enumerate(zip(marker.checkpoints, expected, strict=True)):
            source = f"as {right.name}/{layout.CHECKPOINT_MARK} says"
            yield from _different(file, f"/checkpoints/{number}", entry, right, source)


def _launches(tree: Tree, record: RunRecord, marker: CompletionMarker) -> Iterator[Fault]:
    file, launches = tree.place(layout.COMPLETION_MARKER), record.launches
    if not launches:
        yield CONTEXT.fault(
            file=tree.place(layout.LAUNCHES), found="no record that can be read", expected="every launch"
        )
        return
    steps, measured = marker.counts.optimizer_steps, marker.launches.measured
    expected = launch_entries(launches, steps=steps, measured=measured).records
    found = marker.launches.records
    yield from _different(file, "/launches/records", len(found), len(expected), f"the records in {layout.LAUNCHES}/")
    for number, (entry, right) in enumerate(zip(found, expected, strict=False)):
        last = number == len(expected) - 1
        for name in field_names(type(right)):
            wanted = None if last and name in {"end_sha256", "exit_code"} else getattr(right, name)
            pointer, source = f"/launches/records/{number}/{name}", f"as in {layout.LAUNCHES}/"
            yield from _different(file, pointer, getattr(entry, name), wanted, source)
    machines = machines_of(launches)
    if marker.machines != machines:
        count = f"{len(marker.machines)} machines"
        stated = f"the {len(machines)} machines of the records in {layout.LAUNCHES}/, each as it is there"
        yield CONTEXT.fault(file=file, pointer="/machines", found=count, expected=stated)
    elif marker.differences != differences(machines):
        count, stated = f"{len(marker.differences)} differences", "what differs between the machines, computed again"
        yield CONTEXT.fault(file=file, pointer="/differences", found=count, expected=stated)


def _adapter(tree: Tree, record: RunRecord, marker: CompletionMarker, hashes: Mapping[str, str]) -> Iterator[Fault]:
    file, prefix = tree.place(layout.COMPLETION_MARKER), f"{layout.FINAL_ADAPTER}/"
    present = {name.removeprefix(prefix): hashes.get(name) for name in tree.files if name.startswith(prefix)}
    present = {name: sha256 for name, sha256 in present.items() if layout.is_covered(f"{prefix}{name}")}
    for name in sorted(present.keys() | marker.adapter.files.keys()):
        found = marker.adapter.files.get(name)
        yield from _different(file, f"/adapter/files/{name}", found, present.get(name), f"the hash of {prefix}{name}")
    weights = f"{prefix}{layout.ADAPTER_WEIGHTS}"
    if record.plan is not None:
        yield from configuration_faults(tree, layout.FINAL_ADAPTER, record.plan, marker, CONTEXT)
    tensors = yield from read_tensors(tree, weights, CONTEXT)
    if tensors is not None:
        sha256 = tensors_sha256(tensors)
        for pointer, found in (
            ("/adapter/tensors_sha256", marker.adapter.tensors_sha256),
            ("/identities/final_adapter_tensors_sha256", marker.identities.final_adapter_tensors_sha256),
        ):
            yield from _different(file, pointer, found, sha256, f"the digest of the tensors in {weights}")
        yield from _parameters(file, marker, tensors, weights)
    unchanged = marker.identities.final_adapter_tensors_sha256 == marker.identities.initial_adapter_tensors_sha256
    yield from _different(file, "/adapter/unchanged", marker.adapter.unchanged, unchanged, "as the digests say")
    for folder, mark in record.marks.items():
        yield from _checkpoint_adapters(tree, folder, mark.step, marker)


def _parameters(
    file: str, marker: CompletionMarker, tensors: Mapping[str, TensorDigest], weights: str
) -> Iterator[Fault]:
    """The trained parameters are those of the saved adapter, where PEFT leaves the adapter's name out of theirs."""
    again = Parameters.of(marker.parameters.tensors)
    for name in ("trainable", "sha256", "modules"):
        found, expected = getattr(marker.parameters, name), getattr(again, name)
        yield from _different(file, f"/parameters/{name}", found, expected, "computed again from parameters.tensors")
    if different := tensor_differences(trained_tensors(marker), saved_tensors(tensors)):
        found, expected = different
        yield CONTEXT.fault(file=file, pointer="/parameters/tensors", found=found, expected=f"{expected} of {weights}")


def _checkpoint_adapters(tree: Tree, folder: str, step: int, marker: CompletionMarker) -> Iterator[Fault]:
    """The last checkpoint holds the final adapter; a reference adapter is the initial one, at every checkpoint."""
    reference = f"{folder}/{layout.REFERENCE_ADAPTER}/{layout.ADAPTER_WEIGHTS}"
    own = f"{folder}/{layout.ADAPTER_WEIGHTS}"
    expected = {
        reference: ("initial", marker.identities.initial_adapter_tensors_sha256),
        own: ("final", marker.identities.final_adapter_tensors_sha256),
    }
    for name, (which, sha256) in expected.items():
        if name not in tree.files or (name == own and step != marker.counts.optimizer_steps):
            continue
        tensors = yield from read_tensors(tree, name, CONTEXT)
        if tensors is not None:
            source = f"the digest of the {which} adapter in {layout.COMPLETION_MARKER}"
            yield from _different(tree.place(name), "", tensors_sha256(tensors), sha256, source)


def _log(tree: Tree, record: RunRecord, marker: CompletionMarker) -> Iterator[Fault]:
    """The metrics are the marker's log, and its last values are those of the log."""
    file, log = tree.place(layout.METRICS), list(marker.log_history)
    if layout.METRICS not in tree.files:
        if log:
            expected = f"the {len(log)} rows of log_history in {layout.COMPLETION_MARKER}"
            yield CONTEXT.fault(file=file, found="no such file", expected=expected)
    elif record.metrics != log:
        rows = zip(record.metrics, log, strict=False)
        first = next((number for number, (ours, right) in enumerate(rows, 1) if ours != right), None)
        found = f"{len(record.metrics)} rows" if first is None else f"another row {first}"
        expected = f"the {len(log)} rows of log_history in {layout.COMPLETION_MARKER}"
        yield CONTEXT.fault(file=file if first is None else f"{file}:{first}", found=found, expected=expected)
    source = "the last values of log_history"
    yield from _different(tree.place(layout.COMPLETION_MARKER), "/metrics", marker.metrics, last_values(log), source)
