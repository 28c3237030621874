"""What the gates hand to the launcher and the ranks.

The gates have hashed every file that the plan names. Ranks do not hash them again: a rank that hashes 40 GB of images
keeps the others waiting. Ranks get one document with the checked plan and paths, and its hash in the environment. They
refuse to train if the two do not match. The document exists only during the launch, because it holds absolute paths.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.canonical import canonical_bytes, sha256_json
from explicit_learning.files.strict_json import load_json
from explicit_learning.files.typed_json import checked_json, document, parsed
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
from explicit_learning.rundir.launches import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MANIFEST_SHA256_VARIABLE",
    "MANIFEST_VARIABLE",
    "FollowerManifest",
    "LaunchManifest",
    "read_follower_manifest",
    "read_launch_manifest",
    "write_launch_manifest",
]

MANIFEST_VARIABLE = "EXPLICIT_LAUNCH_MANIFEST"
MANIFEST_SHA256_VARIABLE = "EXPLICIT_LAUNCH_MANIFEST_SHA256"
GATE = "launch"
CONTEXT = Context(gate=GATE, fix="start training with `el run PLAN`, which checks the plan and starts the ranks")

Manifest = TypeVar("Manifest", "LaunchManifest", "FollowerManifest")


@document("launch-manifest")
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
        uninterrupted: Whether this launch trains a smoke plan without an interruption (smoke phase 3), for a
            comparison with the complete run of that plan: its own run never becomes complete.
        machine: This machine; of several, node 0.
        accept_changes: Whether launches and nodes may differ in what decides numbers.
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
    machine: Machine
    accept_changes: bool = False
    audit: bool = False
    uninterrupted: bool = False

    @property
    def run(self) -> Path:
        """The run directory."""
        return Path(self.run_folder)


@document("follower-manifest")
@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerManifest:
    """What a node that follows node 0 knows before it joins; the rest comes from node 0.

    Attributes:
        plan: The plan as frozen.
        run_folder: The run directory as this node sees it, absolute.
        paths: Absolute paths of the plan's inputs on this node.
        running_commit: Git commit of the code that runs on this node.
        machine: This node's machine.
    """

    plan: Plan
    run_folder: str
    paths: ResolvedPaths
    running_commit: str
    machine: Machine


def write_launch_manifest(path: Path, manifest: LaunchManifest | FollowerManifest) -> dict[str, str]:
    """Write a manifest for its owner only, and return the environment variables that lead processes to it.

    Raises:
        Refusal: If it breaks its schema (exit code 70).
        OSError: If the file cannot be written.
    """
    plain = checked_json(manifest, gate=GATE, file=str(path))
    write_bytes(path, canonical_bytes(plain), mode=0o600)
    return {MANIFEST_VARIABLE: str(path), MANIFEST_SHA256_VARIABLE: sha256_json(plain)}


def read_launch_manifest(environment: Mapping[str, str] = os.environ) -> LaunchManifest:
    """Return the verified launch manifest named by the environment.

    Raises:
        Refusal: If there is none, its hash is another, or it breaks its schema: training outside `el run` is refused.
    """
    return _read(environment, LaunchManifest)


def read_follower_manifest(environment: Mapping[str, str] = os.environ) -> FollowerManifest:
    """Return the verified manifest of a node that follows another.

    Raises:
        Refusal: If there is none, its hash is another, or it breaks its schema.
    """
    return _read(environment, FollowerManifest)


def _read(environment: Mapping[str, str], kind: type[Manifest]) -> Manifest:
    name, expected = environment.get(MANIFEST_VARIABLE), environment.get(MANIFEST_SHA256_VARIABLE)
    if not name or not expected:
        found = f"{MANIFEST_VARIABLE} or {MANIFEST_SHA256_VARIABLE} is not set"
        raise CONTEXT.refusal(found=found, expected="a verified launch manifest", exit_code=ExitCode.USAGE)
    try:
        plain = load_json(Path(name), gate=GATE)
    except Refusal as refusal:
        found, expected = refusal.faults[0].found, "a launch manifest"
        raise CONTEXT.refusal(file=name, found=found, expected=expected) from None
    if (found := sha256_json(plain)) != expected:
        raise CONTEXT.refusal(file=name, found=f"hash {found}", expected=f"hash {expected}")
    return parsed(plain, kind, gate=GATE, file=name)
