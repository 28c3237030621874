"""The statement of an export: its files, and the run, base model and adapter that they were made from.

Like an evaluation's, it is computed from its folder alone and written last. It covers nothing of the run, and the run's
covers nothing of it. ``docs/build-type.md`` says what each part means.
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
from explicit_learning.rundir.export_record import EXPORT_STATEMENT, export_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from securesystemslib.signer import CryptoSigner

    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.export_record import ExportRecord

__all__ = ["EXPORT_BUILD_TYPE", "build_export_statement", "write_export_statement"]

EXPORT_BUILD_TYPE = "urn:explicit-learning:build-type:export:1"  # docs/build-type.md
BUILDER = "urn:explicit-learning:builder:el-export:1"


def build_export_statement(tree: Tree, hashes: Mapping[str, str], *, keyid: str | None) -> dict[str, Any]:
    """Return the statement of an export.

    Args:
        tree: Its folder's files.
        hashes: SHA-256 of each file that it covers, by name: all but the statement itself.
        keyid: Name of the key that signs it; ``None`` for an unsigned one.

    Raises:
        Refusal: If the export's record cannot be read or breaks its schema.
    """
    found = export_of(tree)
    machine = [(None, found.machine)]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": hashes[name]}} for name in sorted(hashes)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": EXPORT_BUILD_TYPE,
                "externalParameters": {
                    "run_id": found.run_id,
                    "arm": found.arm,
                    "kind": found.kind,
                    "dtype": found.dtype,
                },
                "internalParameters": {
                    "signed_by": keyid,
                    "comparison": to_json(found.comparison),
                    "machine": to_json(found.machine),
                },
                "resolvedDependencies": [
                    *_inputs(found),
                    *code_dependencies(machine),
                    *image_dependencies(machine),
                ],
            },
            "runDetails": {"builder": {"id": BUILDER}},
        },
    }


def _inputs(found: ExportRecord) -> Iterator[dict[str, Any]]:
    """Yield what an export was made from."""
    yield dependency("run-statement", "sha256", found.run_statement_sha256)
    yield dependency("completion-marker", "sha256", found.completion_marker_sha256)
    yield dependency("plan", "sha256", found.frozen_config_sha256)
    base = found.base_model
    yield dependency("base-model", "sha256", base.snapshot_sha256, {"name": base.name, "revision": base.revision})
    yield dependency("adapter", "sha256", found.adapter_sha256)
    yield dependency("adapter-tensors", "sha256", found.adapter_tensors_sha256)


def write_export_statement(folder: Path, signer: CryptoSigner | None) -> None:
    """Write an export's statement, over all its files as they are now.

    Args:
        folder: The export's folder.
        signer: What signs it; ``None`` leaves it unsigned.

    Raises:
        Refusal: If a file of the export cannot be read.
        OSError: If a file cannot be written.
    """
    place_public_key(folder / layout.PUBLIC_KEY, signer)
    tree = FolderTree(folder)
    hashes, errors = hash_tree(tree, [name for name in tree.files if name != EXPORT_STATEMENT])
    if errors:
        raise Refusal(read_fault(error, Path(tree.place(name)), gate="statement") for name, error in errors.items())
    keyid = None if signer is None else signer.public_key.keyid
    write_bytes(folder / EXPORT_STATEMENT, wrap(build_export_statement(tree, hashes, keyid=keyid), signer))
