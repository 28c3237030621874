"""What the launchers of several nodes send each other: the keys of the store, their values, and how long each waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths  # noqa: TC001 - read at run time
from explicit_learning.rundir.launch_manifest import LaunchManifest, read_launch_document

__all__ = [
    "EXIT_CODE",
    "JOIN_REPLY",
    "JOIN_SECONDS",
    "REPORT_SECONDS",
    "RUN_MANIFEST_SHA256",
    "STOP_REQUEST",
    "FollowerManifest",
    "JoinReply",
    "JoinRequest",
    "join_request_of",
    "read_follower_manifest",
    "receipt_of",
    "report_of",
]

RUN_MANIFEST_SHA256 = "hash of the run manifest"
JOIN_REPLY = "launch manifest"
STOP_REQUEST = "stop request"
EXIT_CODE = "exit code"
# A scheduler starts nodes minutes apart; gates may hash for minutes on the one that has the slowest disk.
JOIN_SECONDS = 600.0
# Ranks that lost a peer fail in their next collective, and an agent gives its own 30 s.
REPORT_SECONDS = 120.0


def join_request_of(rank: int) -> str:
    """Return the key of a node's `JoinRequest`."""
    return f"join request of node {rank}"


def report_of(rank: int) -> str:
    """Return the key of a node's report of how its ranks ended (`NodeEnd`)."""
    return f"report of node {rank}"


def receipt_of(rank: int) -> str:
    """Return the key under which a node stores that it received what node 0 sent last."""
    return f"receipt of node {rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerManifest:
    """What a node other than node 0 finds out by itself; the file that its light process hands to its launcher.

    Attributes:
        plan: The plan as frozen.
        run_folder: The run directory, absolute, as this machine sees it.
        paths: Absolute paths of the plan's inputs on this machine.
        running_commit: Git commit of the code that runs now.
        hardware: Its hardware, for the event log.
        image: Its image's identity, for the event log.
    """

    plan: Plan
    run_folder: str
    paths: ResolvedPaths
    running_commit: str
    hardware: dict[str, Any]
    image: dict[str, Any]


def read_follower_manifest() -> FollowerManifest:
    """Return the verified manifest of a node that follows node 0.

    Raises:
        Refusal: If the environment names none, or its hash is another.
    """
    return from_json(FollowerManifest, read_launch_document())


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """What a node sends to node 0 to join.

    Attributes:
        node: What it found out by itself.
        nnodes: How many nodes it expects.
        sees_run: Whether its run folder is that of node 0.
    """

    node: FollowerManifest
    nnodes: int
    sees_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """What node 0 sends to all once every node has joined, or once one cannot.

    Attributes:
        manifest: The launch manifest; ``None`` if no rank is started.
        nnodes: How many nodes node 0 expects.
        refusal: Why no rank is started.
        stopped: Whether a stop request is the reason.
    """

    manifest: LaunchManifest | None
    nnodes: int
    refusal: str | None = None
    stopped: bool = False
