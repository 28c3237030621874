"""The statement of an evaluation: its answers and numbers, and what they were made from.

Like a run's, it is computed from its folder alone and written last. It covers nothing of the run, and the run's covers
no evaluation. ``docs/build-type.md`` says what each part means.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.completion.dependencies import code_dependencies, dependency, image_dependencies
from explicit_learning.completion.envelope import PREDICATE_TYPE, STATEMENT_TYPE, place_public_key, wrap
from explicit_learning.errors import Refusal
from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.tree import FolderTree, hash_tree
from explicit_learning.files.typed_json import to_json
from explicit_learning.rundir import layout
from explicit_learning.rundir.evaluation import evaluation_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from securesystemslib.signer import CryptoSigner

    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.evaluation import Evaluation

__all__ = ["EVALUATION_BUILD_TYPE", "build_evaluation_statement", "write_evaluation_statement"]

EVALUATION_BUILD_TYPE = "urn:explicit-learning:build-type:evaluation:1"  # docs/build-type.md
BUILDER = "urn:explicit-learning:builder:el-evaluate:1"
COVERED = layout.EVALUATION_FILES - {layout.EVALUATION_STATEMENT}


def build_evaluation_statement(tree: Tree, hashes: Mapping[str, str], *, keyid: str | None) -> dict[str, Any]:
    """Return the statement of an evaluation.

    Args:
        tree: Its folder's files.
        hashes: SHA-256 of each file that it covers, by name: all but the statement itself.
        keyid: Name of the key that signs it; ``None`` for an unsigned one.

    Raises:
        Refusal: If the evaluation's document cannot be read or breaks its schema.
    """
    found = evaluation_of(tree)
    machine = [(None, found.machine)]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": hashes[name]}} for name in sorted(hashes)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": EVALUATION_BUILD_TYPE,
                "externalParameters": {
                    "run_id": found.run_id,
                    "arm": found.arm,
                    "which": found.which,
                    "engine": found.engine,
                    "max_completion_tokens": found.max_completion_tokens,
                },
                "internalParameters": {"signed_by": keyid, "machine": to_json(found.machine)},
                "resolvedDependencies": [
                    *_inputs(found),
                    *code_dependencies(machine),
                    *image_dependencies(machine),
                ],
            },
            "runDetails": {"builder": {"id": BUILDER}},
        },
    }


def _inputs(found: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield what the answers depend on; what an evaluation has no such thing of is left out."""
    digests = {
        "plan": found.frozen_config_sha256,
        "completion-marker": found.completion_marker_sha256,
        "adapter": found.adapter_sha256,
        "base-model": found.model_snapshot_sha256,
        "evaluation-manifest": found.evaluation_manifest_sha256,
        "prompt": found.prompt_sha256,
        "environment-lock": found.environment_lock_sha256,
        "evaluation-lock": found.evaluation_lock_sha256,
    }
    for name, digest in digests.items():
        if digest is not None:
            yield dependency(name, "sha256", digest)


def write_evaluation_statement(folder: Path, signer: CryptoSigner | None) -> None:
    """Write an evaluation's statement, over its files as they are now.

    Args:
        folder: The evaluation's folder.
        signer: What signs it; ``None`` leaves it unsigned.

    Raises:
        Refusal: If a file of the evaluation cannot be read.
        OSError: If a file cannot be written.
    """
    place_public_key(folder / layout.PUBLIC_KEY, signer)
    tree = FolderTree(folder)
    hashes, errors = hash_tree(tree, sorted(tree.files.keys() & COVERED))
    if errors:
        raise Refusal(read_fault(error, Path(tree.place(name)), gate="statement") for name, error in errors.items())
    keyid = None if signer is None else signer.public_key.keyid
    statement = build_evaluation_statement(tree, hashes, keyid=keyid)
    write_bytes(folder / layout.EVALUATION_STATEMENT, wrap(statement, signer))
