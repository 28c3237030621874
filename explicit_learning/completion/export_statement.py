"""The statement of an export: its files, and the run, base model and adapter that they were made from.

`explicit_learning.completion.derived_statement` says what it shares with an evaluation's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.completion.dependencies import dependency
from explicit_learning.completion.derived_statement import derived_statement, write_derived_statement
from explicit_learning.files.typed_json import to_json
from explicit_learning.rundir.export_record import EXPORT_STATEMENT, export_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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
    return derived_statement(
        hashes,
        build_type=EXPORT_BUILD_TYPE,
        builder=BUILDER,
        external={"run_id": found.run_id, "arm": found.arm, "kind": found.kind, "dtype": found.dtype},
        internal={"signed_by": keyid, "comparison": to_json(found.comparison)},
        inputs=_inputs(found),
        machine=found.machine,
    )


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
    name = EXPORT_STATEMENT
    write_derived_statement(folder, name, build_export_statement, signer, covers=lambda each: each != name)
