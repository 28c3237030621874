"""The statement of an evaluation: its answers and numbers, and what they were made from.

`explicit_learning.completion.derived_statement` says what it shares with an export's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.completion.dependencies import dependency
from explicit_learning.completion.derived_statement import derived_statement, write_derived_statement
from explicit_learning.rundir import layout
from explicit_learning.rundir.evaluation import evaluation_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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
    return derived_statement(
        hashes,
        build_type=EVALUATION_BUILD_TYPE,
        builder=BUILDER,
        external={
            "run_id": found.run_id,
            "arm": found.arm,
            "which": found.which,
            "engine": found.engine,
            "max_completion_tokens": found.max_completion_tokens,
        },
        internal={"signed_by": keyid},
        inputs=_inputs(found),
        machine=found.machine,
    )


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
    name = layout.EVALUATION_STATEMENT
    write_derived_statement(folder, name, build_evaluation_statement, signer, covers=COVERED.__contains__)
