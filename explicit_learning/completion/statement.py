"""The statement of a complete run: what it consists of, and what it was made from, in a form that others read.

An in-toto Statement v1 with a SLSA provenance v1 predicate. ``docs/build-type.md`` says what each part means. All of it
is computed from the run directory alone, so that anybody can compute it again: that is how `el verify` proves an
unsigned one. It is written last; a kill before that is repaired by the next `el run`, which only finalises.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.completion.dependencies import code_dependencies, dependency, image_dependencies
from explicit_learning.completion.envelope import PREDICATE_TYPE, STATEMENT_TYPE, place_public_key, wrap
from explicit_learning.completion.launches import launch_entries, machines_of
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.progress import say
from explicit_learning.files.tree import FolderTree, hash_tree, tree_document, tree_json
from explicit_learning.files.typed_json import RESTORE, to_json
from explicit_learning.plan.reading import load_plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoints import remove_half_written
from explicit_learning.rundir.completion_marker import CompletionMarker
from explicit_learning.rundir.known_files import unknown_files
from explicit_learning.rundir.launches import launches_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from securesystemslib.signer import CryptoSigner

    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.launches import Launch, Machine

__all__ = ["BUILD_TYPE", "build_statement", "write_statement"]

GATE = "statement"
CONTEXT = Context(gate=GATE, fix="restore the run directory from a copy")
MOVE = "move what is not the run's own out of its folder"
BUILD_TYPE = "urn:explicit-learning:build-type:run:1"  # docs/build-type.md
BUILDER = "urn:explicit-learning:builder:el-run:1"


def build_statement(tree: Tree, hashes: Mapping[str, str], *, keyid: str | None) -> dict[str, Any]:
    """Return the statement of a complete run.

    Args:
        tree: The run's files.
        hashes: SHA-256 of each file that it covers (`layout.is_covered`), by name.
        keyid: Name of the key that signs it; ``None`` for an unsigned one.

    Raises:
        Refusal: If the plan, the marker or a record of a launch cannot be read or breaks its schema.
    """
    plan = tree_json(tree, layout.PLAN, gate=GATE, fix=RESTORE)
    marker = tree_document(tree, layout.COMPLETION_MARKER, CompletionMarker, gate=GATE, fix=RESTORE)
    launches = launches_of(tree)
    machines = machines_of(launches)
    entries = launch_entries(launches, steps=marker.counts.optimizer_steps, measured=marker.launches.measured)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": hashes[name]}} for name in sorted(hashes)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"plan": plan},
                "internalParameters": {
                    "signed_by": keyid,
                    "launches": [
                        {
                            **to_json(entry),
                            "images": [to_json(node.image.digests) for node in launch.start.nodes],
                            "code": [to_json(node.code) for node in launch.start.nodes],
                        }
                        for entry, launch in zip(entries.records, launches, strict=True)
                    ],
                    "machines": to_json(machines),
                    "gpus_of_ranks": to_json(marker.gpus),
                },
                "resolvedDependencies": [
                    *_inputs(marker),
                    *_code(marker, launches),
                    *image_dependencies(_machines(launches)),
                ],
            },
            "runDetails": {
                "builder": {"id": BUILDER},
                "metadata": {"invocationId": launches[-1].start.launch_id if launches else marker.run_id},
            },
        },
    }


def _inputs(marker: CompletionMarker) -> Iterator[dict[str, Any]]:
    """Yield what the plan names; what the arm has no such thing of is left out."""
    found = marker.identities
    digests = {
        "environment-lock": found.environment_lock_sha256,
        "base-model": found.base_model.snapshot_sha256,
        "base-model-weights": found.base_weights_sha256,
        "dataset": found.dataset_sha256,
        "dataset-manifest": found.dataset_manifest_sha256,
        "slot-manifest": found.slot_manifest_sha256,
        "evaluation-manifest": found.evaluation_manifest_sha256,
        "prompt": found.prompt_sha256,
        "initial-adapter": found.initial_adapter_sha256,
        "initial-adapter-tensors": found.initial_adapter_tensors_sha256,
    }
    notes = {"base-model": {"revision": found.base_model.revision}}
    for name, digest in digests.items():
        if digest is not None:
            yield dependency(name, "sha256", digest, notes.get(name))


def _code(marker: CompletionMarker, launches: Sequence[Launch]) -> Iterator[dict[str, Any]]:
    """Yield the code that froze the plan, and every code that ran, with the launches in which it did."""
    found = marker.identities
    yield dependency("code-that-froze-the-plan", "gitCommit", found.frozen_commit, {"dirty": found.frozen_dirty})
    yield from code_dependencies(_machines(launches))


def _machines(launches: Sequence[Launch]) -> list[tuple[str, Machine]]:
    return [(launch.start.launch_id, machine) for launch in launches for machine in launch.start.nodes]


def write_statement(run: Path, signer: CryptoSigner | None) -> None:
    """Write a complete run's statement, over all files that it covers as they are now; the run's lock is removed.

    Args:
        run: The run directory.
        signer: What signs it; ``None`` leaves it unsigned.

    Raises:
        Refusal: If a document of the run cannot be read, or the run directory holds a file that no part of a run
            writes (exit code 73).
        OSError: If a file cannot be read or written.
    """
    remove_half_written(run)
    target = run / layout.statement_file()
    target.parent.mkdir(exist_ok=True)
    place_public_key(run / layout.public_key_file(), signer)
    (run / layout.LOCK).unlink(missing_ok=True)
    tree = FolderTree(run)
    hashes, errors = hash_tree(tree, filter(layout.is_covered, tree.files))
    if odd := [name for name in hashes if not _is_text(name)]:
        expected = "names in UTF-8, which a statement can hold"
        raise Refusal(CONTEXT.fault(found=repr(name), expected=expected, fix=MOVE) for name in odd)
    if strange := unknown_files(tree.files, world_size=load_plan(run / layout.PLAN).hardware.world_size):
        at = Context(gate=GATE, fix=MOVE, exit_code=ExitCode.OUTPUT)
        expected = "files that a run writes, and no others"
        raise Refusal(at.fault(file=tree.place(name), found="another file", expected=expected) for name in strange)
    for name, what in tree.others.items():
        say(f"warning: {tree.place(name)} is {what}, which the statement cannot cover: el verify will refuse it")
    if errors:
        raise Refusal(read_fault(error, Path(tree.place(name)), gate=GATE) for name, error in errors.items())
    keyid = None if signer is None else signer.public_key.keyid
    write_bytes(target, wrap(build_statement(tree, hashes, keyid=keyid), signer))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
