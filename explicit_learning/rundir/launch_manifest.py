"""What the gates hand to the launcher and the ranks.

The gates have checked every byte the plan names. Ranks must not do so again (a rank that hashes 40 GB of images keeps
others waiting), nor may they trust a folder that somebody changed the name of: they get one document, whose hash
travels apart from it in the environment, and refuse to train without it. It lives only while the run is up, because it
holds absolute paths.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.canonical import canonical_bytes, sha256_json
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths  # noqa: TC001 - read at run time

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MANIFEST_SHA256_VARIABLE",
    "MANIFEST_VARIABLE",
    "LaunchManifest",
    "read_launch_document",
    "read_launch_manifest",
    "write_launch_manifest",
]

MANIFEST_VARIABLE = "EXPLICIT_LAUNCH_MANIFEST"
MANIFEST_SHA256_VARIABLE = "EXPLICIT_LAUNCH_MANIFEST_SHA256"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchManifest:
    """Everything a rank needs to know.

    Attributes:
        plan: The plan as frozen.
        run_folder: The run directory, absolute.
        paths: Absolute paths of the plan's inputs.
        run_manifest_sha256: Hash of the run manifest's frozen part.
        running_commit: Git commit of the code that runs now; it may differ from the plan's.
        launch_id: Random name of this launch (a nonce: process ids repeat).
        resume_checkpoint: Name of the checkpoint folder to resume from, or ``None`` for a fresh start.
        report_to: Trackers that real training runs report to, from ``EXPLICIT_REPORT_TO``.
        stop_at_step: Step at which this launch ends with a checkpoint (smoke phase 1), or ``None``.
        audit: Whether a resumed launch proves that its state was restored (smoke runs always do).
    """

    plan: Plan
    run_folder: str
    paths: ResolvedPaths
    run_manifest_sha256: str
    running_commit: str
    launch_id: str
    resume_checkpoint: str | None
    report_to: tuple[str, ...]
    stop_at_step: int | None
    audit: bool = False

    @property
    def run(self) -> Path:
        """The run directory."""
        return Path(self.run_folder)


def write_launch_manifest(path: Path, document: dict[str, Any]) -> dict[str, str]:
    """Write the document and return the environment variables that lead ranks to it.

    Raises:
        OSError: If the file cannot be written.
    """
    write_bytes(path, canonical_bytes(document), mode=0o600)
    return {MANIFEST_VARIABLE: str(path), MANIFEST_SHA256_VARIABLE: sha256_json(document)}


def read_launch_manifest(environment: Mapping[str, str] = os.environ) -> LaunchManifest:
    """Return the verified launch manifest named by the environment.

    Raises:
        Refusal: If there is none, or its hash is another: training outside `el run` is refused.
    """
    return from_json(LaunchManifest, read_launch_document(environment))


def read_launch_document(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the verified launch manifest as the JSON object that it is.

    On a node that follows another it holds only what that node knows: see `explicit_learning.launch.multi_node.leader`.

    Raises:
        Refusal: If there is none, or its hash is another: training outside `el run` is refused.
    """
    name, expected = environment.get(MANIFEST_VARIABLE), environment.get(MANIFEST_SHA256_VARIABLE)
    fix = "start training with `el run PLAN`, which checks the plan and launches the ranks"
    if not name or not expected:
        found = f"{MANIFEST_VARIABLE} or {MANIFEST_SHA256_VARIABLE} is not set"
        raise Refusal(
            Fault(gate="launch", found=found, expected="a verified launch manifest", fix=fix, exit_code=ExitCode.USAGE)
        )
    try:
        document = json.loads(Path(name).read_bytes())
    except (OSError, ValueError) as error:
        raise Refusal(
            Fault(gate="launch", file=name, found=str(error), expected="a launch manifest", fix=fix)
        ) from None
    if (found := sha256_json(document)) != expected:
        raise Refusal(Fault(gate="launch", file=name, found=f"hash {found}", expected=f"hash {expected}", fix=fix))
    result: dict[str, Any] = document
    return result
