"""The other nodes' side of a launch over several nodes: from joining to the exit code that node 0 sends.

Their ranks train like node 0's; their launcher writes nothing into the run directory but logs.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.typed_json import to_json
from explicit_learning.launch.launch_answer import print_line
from explicit_learning.launch.multi_node.messages import (
    EXIT_CODE,
    JOIN_REPLY,
    JOIN_SECONDS,
    REPORT_SECONDS,
    RUN_MANIFEST_SHA256,
    STOP_REQUEST,
    JoinReply,
    JoinRequest,
    join_request_of,
    read_join_reply,
    receipt_of,
    report_of,
)
from explicit_learning.launch.multi_node.nodes import MultiNodeError, StopRequestedError
from explicit_learning.launch.multi_node.store import NodeStore
from explicit_learning.launch.multi_node.watch import READ_THAT_NODE, NodeWatch
from explicit_learning.rundir.launch_manifest import (
    MANIFEST_VARIABLE,
    FollowerManifest,
    LaunchManifest,
    write_launch_manifest,
)
from explicit_learning.rundir.run_manifest import read_run_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from explicit_learning.launch.multi_node.messages import FollowerManifest
    from explicit_learning.launch.multi_node.nodes import NodePlace
    from explicit_learning.launch.outcomes import NodeEnd
    from explicit_learning.launch.signals import StopRequest
    from explicit_learning.rundir.launch_manifest import LaunchManifest

__all__ = ["follow"]

# Node 0 may be waiting for the report of a third node.
EXIT_CODE_SECONDS = 2 * REPORT_SECONDS
# A client of a network file system may remember for a minute that a file was not there.
SIGHT_SECONDS = 90.0
SIGHT_POLL_SECONDS = 0.5
CONTEXT = Context(gate="nodes", exit_code=ExitCode.INTERNAL)
ALL_NODES = "all nodes of the launch, each once"


def follow(
    own: FollowerManifest,
    node: NodePlace,
    *,
    stop: StopRequest,
    run_ranks: Callable[[LaunchManifest, NodeWatch], NodeEnd],
) -> ExitCode:
    """Join node 0, run this node's ranks, and return the exit code that node 0 sends.

    Args:
        own: This node's own part of the launch: its plan, paths, commit, hardware and image.
        node: This node's place.
        stop: Notes the signals that this process gets.
        run_ranks: Runs this node's ranks until they have ended.

    Raises:
        Refusal: If no rank is started, or node 0 sends no exit code.
    """
    where, minutes = f"{node.host}:{node.port}", JOIN_SECONDS / 60
    print_line(f"node {node.rank} of {node.count}: connecting to node 0 at {where}, for up to {minutes:.0f} min")
    with _refusing(stop):
        store = NodeStore(node, seconds=JOIN_SECONDS, stopped=stop.requested)
        _claim_place(store, node)
    with NodeWatch(node, store) as watch:
        with _refusing(stop):
            reply = _join(store, watch, node, own, stop)
        manifest = _accepted(reply, node, store, own)

        def run() -> NodeEnd:
            os.environ.update(write_launch_manifest(Path(os.environ[MANIFEST_VARIABLE]), manifest))
            return run_ranks(manifest, watch)

        end = watch.run_ranks(run, node.ranks(manifest.plan.hardware.world_size))
        try:
            store.put(report_of(node.rank), to_json(end))
            code = ExitCode(store.wait_for(EXIT_CODE, seconds=EXIT_CODE_SECONDS))
            _acknowledge(store, node)
        except MultiNodeError as error:
            raise CONTEXT.refusal(found=error.found, expected="the exit code of node 0", fix=error.fix) from None
    return code


@contextmanager
def _refusing(stop: StopRequest) -> Iterator[None]:
    """Turn an error of the nodes into the refusal of a launch that has no ranks yet."""
    try:
        yield
    except MultiNodeError as error:
        code = ExitCode.STOPPED if stop.requested() else error.exit_code
        raise CONTEXT.refusal(found=error.found, expected=ALL_NODES, fix=error.fix, exit_code=code) from None


def _claim_place(store: NodeStore, node: NodePlace) -> None:
    if not store.claim(f"node {node.rank}"):
        raise CONTEXT.refusal(
            found=f"another node {node.rank} has joined already",
            expected=ALL_NODES,
            fix="start each node once (one task per node under SLURM), or all again with another --rdzv-id",
            exit_code=ExitCode.USAGE,
        )


def _join(store: NodeStore, watch: NodeWatch, node: NodePlace, own: FollowerManifest, stop: StopRequest) -> JoinReply:
    """Ask node 0 to join, and return its reply; a stop signal that comes before it is passed on to node 0."""

    def must_stop() -> bool:
        failure = watch.failure()
        if failure is not None and failure.node == 0:  # what happens to any other node, node 0 puts into its reply
            raise MultiNodeError(failure.reason, READ_THAT_NODE, exit_code=ExitCode(failure.exit_code))
        return stop.requested()

    try:
        sha256 = store.wait_for(RUN_MANIFEST_SHA256, seconds=JOIN_SECONDS, stopped=must_stop)
        sees_run = _sees_run(Path(own.run_folder), sha256, must_stop)
        if not must_stop():
            store.put(join_request_of(node.rank), to_json(JoinRequest(node=own, nnodes=node.count, sees_run=sees_run)))
        value = store.wait_for(JOIN_REPLY, seconds=JOIN_SECONDS, stopped=must_stop)
    except MultiNodeError as error:
        with suppress(MultiNodeError):
            if isinstance(error, StopRequestedError):
                store.put(STOP_REQUEST, True)  # noqa: FBT003 - a JSON value
            _acknowledge(store, node)
        raise
    return read_join_reply(value, node.rank, own)


def _accepted(reply: JoinReply, node: NodePlace, store: NodeStore, own: FollowerManifest) -> LaunchManifest:
    """Return the launch manifest with this machine's paths."""
    if reply.manifest is None:
        with suppress(MultiNodeError):
            _acknowledge(store, node)
        found, fix = f"node 0 does not start: {reply.refusal}", "fix what node 0 names, then start all nodes again"
        raise CONTEXT.refusal(found=found, expected=ALL_NODES, fix=fix, exit_code=ExitCode(reply.exit_code))
    if reply.nnodes != node.count:
        found = f"node 0 was started with --nnodes {reply.nnodes}, this node with --nnodes {node.count}"
        fix = "start all nodes with the same --nnodes"
        raise CONTEXT.refusal(found=found, expected=ALL_NODES, fix=fix, exit_code=ExitCode.USAGE)
    return replace(reply.manifest, run_folder=own.run_folder, paths=own.paths)


def _acknowledge(store: NodeStore, node: NodePlace) -> None:
    store.put(receipt_of(node.rank), True)  # noqa: FBT003 - a JSON value


def _sees_run(run: Path, sha256: str, stopped: Callable[[], bool]) -> bool:
    """Return whether a folder of this machine is that of node 0's run; a parallel file system may take a while."""
    end = time.monotonic() + SIGHT_SECONDS
    while True:
        with suppress(Refusal):
            if read_run_manifest(run).run_manifest_sha256 == sha256:
                return True
        if stopped() or time.monotonic() > end:
            return False
        time.sleep(SIGHT_POLL_SECONDS)
