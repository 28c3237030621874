"""What the launchers of several nodes send each other: the keys of the store, their values, and how long each waits."""

from __future__ import annotations

from dataclasses import dataclass

from explicit_learning.rundir.launch_manifest import FollowerManifest, LaunchManifest

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
