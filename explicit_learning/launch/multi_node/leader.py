"""Node 0's side of a launch over several nodes.

Node 0 holds the run's lock. It sends the launch manifest to the other nodes, collects their reports of how their ranks
ended, finishes the run, and sends the exit code to all. If the ranks of a node fail, or its launcher or its machine is
lost, the others end theirs (`NodeWatch`). Every wait here has a time limit.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from explicit_learning.completion.launches import node_changes, record_start
from explicit_learning.errors import ExitCode, exit_code_of
from explicit_learning.files.typed_json import to_json
from explicit_learning.gates.resume import change_faults
from explicit_learning.launch.launch_answer import print_line
from explicit_learning.launch.multi_node.messages import (
    EXIT_CODE,
    JOIN_REPLY,
    JOIN_SECONDS,
    REFUSAL_SECONDS,
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
from explicit_learning.launch.multi_node.watch import READ_THAT_NODE, NodeWatch
from explicit_learning.launch.outcomes import outcome_of_error

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self._watch = NodeWatch(node, self._store)
        self._lost: set[int] = set()
        self._is_refused = False

    def run(self, manifest: LaunchManifest, run_ranks: Callable[[LaunchManifest, NodeWatch], NodeEnd]) -> list[NodeEnd]:
        """Wait for all nodes, run this one's ranks, and return how the ranks of each node ended, without lost nodes.

        Args:
            manifest: The launch manifest.
            run_ranks: Runs this node's ranks until they have ended.

        Raises:
            StopRequestedError: If a stop is requested of a node before all have joined.
            MultiNodeError: If a node does not join, fails or is lost before all have joined, has another plan, other
                code or another kind of machine, or does not see the run folder.
            Refusal: If the record of an earlier launch is damaged or missing.
            OSError: If the run directory cannot be written.
        """
        where, minutes = f"{self._node.host}:{self._node.port}", JOIN_SECONDS / 60
        print_line(f"node 0 of {self._node.count}: waiting for the others at {where}, for up to {minutes:.0f} min")
        self._store.put(RUN_MANIFEST_SHA256, manifest.run_manifest_sha256)
        since = time.monotonic()
        try:
            record_start(manifest, [self._admit(rank, manifest, since) for rank in self._others()])
        except Exception as error:  # whatever it is: the other nodes must receive a reply
            if isinstance(error, MultiNodeError):
                reason, code = str(error), error.exit_code
            else:
                reason, code = f"{type(error).__name__}: {error}", outcome_of_error(error).code
            is_late = time.monotonic() - since > JOIN_SECONDS
            self._is_refused = not is_late and not isinstance(error, StopRequestedError)
            with suppress(MultiNodeError):
                self._reply(JoinReply(manifest=None, nnodes=self._node.count, refusal=reason, exit_code=int(code)))
            raise
        self._reply(JoinReply(manifest=manifest, nnodes=self._node.count))
        ranks = self._node.ranks(manifest.plan.hardware.world_size)
        own = self._watch.run_ranks(lambda: run_ranks(manifest, self._watch), ranks)
        since = time.monotonic()
        reports = [self._report(rank, since) for rank in self._others()]
        return [own, *(report for report in reports if report is not None)]

    def send_exit_code(self, code: ExitCode) -> None:
        """Send the exit code to the other nodes, wait a moment until they have it, and stop looking at them.

        A launch that does not start waits longer, for nodes that have not come yet: they would look for node 0.
        """
        with suppress(MultiNodeError):
            self._store.put(EXIT_CODE, int(code))
            alive = [rank for rank in self._others() if rank not in self._lost and not self._watch.is_silent(rank)]
            if self._is_refused:
                stopped = self._stop.requested
                self._store.wait_for_all(map(receipt_of, alive), seconds=REFUSAL_SECONDS, stopped=stopped)
            else:
                joined = [rank for rank in alive if self._store.exists(join_request_of(rank))]
                self._store.wait_for_all(map(receipt_of, joined), seconds=RECEIPT_SECONDS)
        self._watch.stop()

    def _others(self) -> range:
        return range(1, self._node.count)

    def _admit(self, rank: int, manifest: LaunchManifest, since: float) -> Machine:
        """Check the request of a node that joins, and return its machine.

        Raises:
            MultiNodeError: If the request does not come, or does not fit.
        """
        key = join_request_of(rank)
        value = self._store.wait_for(key, seconds=JOIN_SECONDS, since=since, stopped=self._must_stop)
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
            fix = "start the run on nodes of one kind, or add --accept-changes"
            raise MultiNodeError(found, fix, exit_code=exit_code_of(change_faults(manifest.run, changes)))

    def _must_stop(self) -> bool:
        """Return whether a stop is requested.

        Raises:
            MultiNodeError: If a node failed, or is lost.
        """
        failure = self._watch.failure()  # looked at first: a node that must stop says so before it fails
        if self._stop.requested() or self._store.exists(STOP_REQUEST):
            return True
        if failure is not None:
            raise MultiNodeError(failure.reason, READ_THAT_NODE, exit_code=ExitCode(failure.exit_code))
        return False

    def _reply(self, reply: JoinReply) -> None:
        self._store.put(JOIN_REPLY, to_json(reply))

    def _report(self, rank: int, since: float) -> NodeEnd | None:
        def is_waited_for_in_vain() -> bool:
            self._watch.require_life(rank)
            return False

        try:
            key = report_of(rank)
            value = self._store.wait_for(key, seconds=REPORT_SECONDS, since=since, stopped=is_waited_for_in_vain)
            return read_report(value, rank)
        except MultiNodeError as error:
            self._lost.add(rank)
            print_line(f"node {rank} is lost: {error.found}")
            return None
