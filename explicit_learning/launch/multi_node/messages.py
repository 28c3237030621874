"""What the launchers of several nodes send each other: the keys of the store, their values, and how long each waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Refusal, found_text
from explicit_learning.files.typed_json import from_json, parsed, to_json
from explicit_learning.launch.multi_node.nodes import MultiNodeError
from explicit_learning.launch.outcomes import NodeEnd
from explicit_learning.rundir.launch_manifest import FollowerManifest, LaunchManifest
from explicit_learning.rundir.outcome import RankOutcome

if TYPE_CHECKING:
    from explicit_learning.plan.typed_plan import Plan

__all__ = [
    "EXIT_CODE",
    "FAILURE",
    "JOIN_REPLY",
    "JOIN_SECONDS",
    "REFUSAL_SECONDS",
    "REPORT_SECONDS",
    "RUN_MANIFEST_SHA256",
    "SAME_CODE",
    "STOP_REQUEST",
    "FollowerManifest",
    "JoinReply",
    "JoinRequest",
    "NodeFailure",
    "failure_of",
    "join_request_of",
    "read_join_reply",
    "read_join_request",
    "read_report",
    "receipt_of",
    "report_of",
    "sign_of_life_of",
]

GATE = "nodes"
SAME_CODE = "start the same code on all nodes"
RUN_MANIFEST_SHA256 = "hash of the run manifest"
JOIN_REPLY = "launch manifest"
STOP_REQUEST = "stop request"
EXIT_CODE = "exit code"
FAILURE = "failure of a node"
# A scheduler starts nodes minutes apart; gates may hash for minutes on the one that has the slowest disk.
JOIN_SECONDS = 600.0
# What a launch that does not start waits until all nodes know.
REFUSAL_SECONDS = 60.0
# Ranks of all nodes end together, and an agent gives its own 30 s. A node that is lost is not waited for.
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


def sign_of_life_of(rank: int) -> str:
    """Return the key of the number that a node counts up for as long as its launcher runs."""
    return f"sign of life of node {rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """What makes all nodes end their ranks.

    Attributes:
        node: The node that failed, or is lost.
        reason: What happened, for people, with the node's name.
        exit_code: The code with which a launch ends that never had ranks.
        at_once: Whether ranks are killed: no other rank has anything to add, or somebody does not want to wait.
    """

    node: int
    reason: str
    exit_code: int
    at_once: bool = False


def failure_of(rank: int, error: BaseException) -> NodeFailure:
    """Return what the other nodes learn of an error that ends a node's launch."""
    if not isinstance(error, Refusal):
        reason = f"node {rank}: {type(error).__name__}: {error}".splitlines()[0]
        return NodeFailure(node=rank, reason=reason, exit_code=int(ExitCode.INTERNAL))
    fault, *others = error.faults
    where = " ".join(part for part in (fault.file, fault.pointer) if part)
    reason = f"node {rank} is refused [{fault.gate}] {where + ': ' if where else ''}found {fault.found}"
    reason += f", expected {fault.expected}" + (f" (and {len(others)} more faults)" if others else "")
    return NodeFailure(node=rank, reason=reason, exit_code=int(error.exit_code))


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
        exit_code: The code with which all nodes then end.
    """

    manifest: LaunchManifest | None
    nnodes: int
    refusal: str | None = None
    exit_code: int = int(ExitCode.INTERNAL)


def read_join_request(value: dict[str, Any], rank: int, manifest: LaunchManifest) -> JoinRequest:
    """Return a node's request to join.

    Raises:
        MultiNodeError: If that node runs other code, has another plan, or sent what breaks its schema.
    """
    sender, receiver = f"node {rank}", "node 0"
    _require_same(value.get("node") or {}, sender, receiver, commit=manifest.running_commit, plan=manifest.plan)
    _require_schema(value["node"], FollowerManifest, join_request_of(rank))
    return from_json(JoinRequest, value)


def read_join_reply(value: dict[str, Any], rank: int, own: FollowerManifest) -> JoinReply:
    """Return node 0's reply.

    Raises:
        MultiNodeError: If node 0 runs other code, has another plan, or sent what breaks its schema.
    """
    if value["manifest"] is not None:
        _require_same(value["manifest"], "node 0", f"node {rank}", commit=own.running_commit, plan=own.plan)
        _require_schema(value["manifest"], LaunchManifest, JOIN_REPLY)
    return from_json(JoinReply, value)


def read_report(value: dict[str, Any], rank: int) -> NodeEnd:
    """Return a node's report of how its ranks ended.

    Raises:
        MultiNodeError: If the outcome of a rank breaks its schema.
    """
    for end in value["ranks"].values():
        if end["outcome"] is not None:
            _require_schema(end["outcome"], RankOutcome, report_of(rank))
    return from_json(NodeEnd, value)


def _require_same(manifest: dict[str, Any], sender: str, receiver: str, *, commit: str, plan: Plan) -> None:
    """Compare the commits first, as they were sent: any other field may differ between two versions of the code."""
    if (found := manifest.get("running_commit")) != commit:
        shown = found if isinstance(found, str) else found_text(found)
        raise MultiNodeError(f"{sender} runs commit {shown}, {receiver} runs {commit}", SAME_CODE)
    if manifest.get("plan") != to_json(plan):
        raise MultiNodeError(f"{sender} has another plan than {receiver}", "start all nodes with the same plan")


def _require_schema(value: object, kind: type[Any], key: str) -> None:
    try:
        parsed(value, kind, gate=GATE, file=key)
    except Refusal as refusal:
        fault = refusal.faults[0]
        found = f"the {key} breaks its schema (at {fault.pointer}: found {fault.found}, expected {fault.expected})"
        raise MultiNodeError(found, SAME_CODE) from None
