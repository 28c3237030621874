"""Node 0's side of a launch over several nodes.

Node 0 holds the run's lock. It sends the launch manifest to the other nodes, collects their reports of how their ranks
ended, finishes the run, and sends the exit code to all. If the launcher of a node dies, its ranks die with it; the
ranks of the other nodes lose their connections and fail, and their launchers end. Every wait here has a time limit.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from explicit_learning.completion.launches import node_changes, record_start
from explicit_learning.files.typed_json import to_json
from explicit_learning.launch.launch_answer import print_line
from explicit_learning.launch.multi_node.messages import (
    EXIT_CODE,
    JOIN_REPLY,
    JOIN_SECONDS,
    REPORT_SECONDS,
    RUN_MANIFEST_SHA256,
    SAME_CODE,
    STOP_REQUEST,
    JoinReply,
    join_request_of,
    read_join_request,
    read_report,
    receipt_of,
    report_of,
)
from explicit_learning.launch.multi_node.nodes import MultiNodeError, StopRequestedError
from explicit_learning.launch.multi_node.store import NodeStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.errors import ExitCode
    from explicit_learning.launch.multi_node.nodes import NodePlace
    from explicit_learning.launch.outcomes import NodeEnd
    from explicit_learning.launch.signals import StopRequest
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.launches import Machine

__all__ = ["Leader"]

RECEIPT_SECONDS = 10.0


class Leader:
    """Node 0's side of a launch."""

    def __init__(self, node: NodePlace, *, stop: StopRequest) -> None:
        """Serve the store for the other nodes.

        Raises:
            MultiNodeError: If that is not possible.
        """
        self._node, self._stop = node, stop
        self._store = NodeStore(node, seconds=JOIN_SECONDS, stopped=stop.requested)
        self._lost: set[int] = set()

    def run(self, manifest: LaunchManifest, run_ranks: Callable[[LaunchManifest], NodeEnd]) -> list[NodeEnd]:
        """Wait for all nodes, run this one's ranks, and return how the ranks of each node ended, without lost nodes.

        Args:
            manifest: The launch manifest.
            run_ranks: Runs this node's ranks until they have ended.

        Raises:
            StopRequestedError: If a stop is requested of a node before all have joined.
            MultiNodeError: If a node does not join, has another plan, other code or another kind of machine, or does
                not see the run folder.
            Refusal: If the record of an earlier launch is damaged or missing.
            OSError, RuntimeError: If ranks cannot be started.
        """
        print_line(f"node 0 of {self._node.count}: waiting for the others at {self._node.host}:{self._node.port}")
        self._store.put(RUN_MANIFEST_SHA256, manifest.run_manifest_sha256)
        try:
            record_start(manifest, [self._admit(rank, manifest) for rank in self._others()])
        except Exception as error:  # whatever it is: the other nodes must receive a reply
            with suppress(MultiNodeError):
                stopped = isinstance(error, StopRequestedError)
                reason = str(error) if isinstance(error, MultiNodeError) else f"{type(error).__name__}: {error}"
                self._reply(JoinReply(manifest=None, nnodes=self._node.count, refusal=reason, stopped=stopped))
            raise
        self._reply(JoinReply(manifest=manifest, nnodes=self._node.count))
        own = run_ranks(manifest)
        reports = [self._report(rank) for rank in self._others()]
        return [own, *(report for report in reports if report is not None)]

    def send_exit_code(self, code: ExitCode) -> None:
        """Send the exit code to the other nodes, and wait a moment until they have received it."""
        with suppress(MultiNodeError):
            self._store.put(EXIT_CODE, int(code))
            for rank in self._others():
                if rank not in self._lost and self._store.exists(join_request_of(rank)):
                    self._store.wait_for(receipt_of(rank), seconds=RECEIPT_SECONDS)

    def _others(self) -> range:
        return range(1, self._node.count)

    def _admit(self, rank: int, manifest: LaunchManifest) -> Machine:
        """Check the request of a node that joins, and return its machine.

        Raises:
            MultiNodeError: If the request does not come, or does not fit.
        """
        value = self._store.wait_for(join_request_of(rank), seconds=JOIN_SECONDS, stopped=self._stop_requested)
        request = read_join_request(value, rank, manifest)
        node = request.node
        if request.nnodes != self._node.count:
            found = f"node {rank} was started with --nnodes {request.nnodes}, node 0 with --nnodes {self._node.count}"
            raise MultiNodeError(found, "start all nodes with the same --nnodes")
        if not request.sees_run:
            found = f"node {rank} does not see node 0's run in {node.run_folder}"
            raise MultiNodeError(found, "name a folder that all nodes share (--out)")
        self._require_same_kind(node.machine, rank, manifest)
        return node.machine

    def _require_same_kind(self, machine: Machine, rank: int, manifest: LaunchManifest) -> None:
        """Refuse a node that runs other files, or computes other numbers if that is not accepted.

        Raises:
            MultiNodeError: If it is one.
        """
        if machine.code.files_sha256 != manifest.machine.code.files_sha256:
            raise MultiNodeError(f"the program's files on node {rank} are not those on node 0", SAME_CODE)
        changes = node_changes(manifest, machine, rank)
        if changes and not manifest.accept_changes:
            found = "; ".join(f"{each.pointer} is {each.now}, node 0 has {each.before}" for each in changes)
            raise MultiNodeError(found, "start the run on nodes of one kind, or add --accept-changes")

    def _stop_requested(self) -> bool:
        return self._stop.requested() or self._store.exists(STOP_REQUEST)

    def _reply(self, reply: JoinReply) -> None:
        self._store.put(JOIN_REPLY, to_json(reply))

    def _report(self, rank: int) -> NodeEnd | None:
        try:
            return read_report(self._store.wait_for(report_of(rank), seconds=REPORT_SECONDS), rank)
        except MultiNodeError as error:
            self._lost.add(rank)
            print_line(f"node {rank} is lost: {error.found}")
            return None
