"""A launch over several nodes, from both sides.

Node 0 leads: it holds the run, hands the launch manifest to the others, gathers what they say of their ranks, finishes
the run and tells all of them the exit code. The others follow: their ranks train, and their launcher writes nothing
into the run directory but logs. Whichever launcher dies, the others end by themselves and say so: its ranks die with
it, theirs lose their peers, and every wait here has an end.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.typed_json import parsed, to_json
from explicit_learning.launch.agent import launch
from explicit_learning.launch.failures import failed
from explicit_learning.launch.multi_node.nodes import AskedToStopError, MeetingError
from explicit_learning.launch.multi_node.store import Meeting
from explicit_learning.launch.settle import NodeEnd, settle
from explicit_learning.rundir.events import append_event
from explicit_learning.rundir.launch_manifest import (
    MANIFEST_VARIABLE,
    FollowerManifest,
    LaunchManifest,
    read_follower_manifest,
    write_launch_manifest,
)
from explicit_learning.rundir.run_manifest import read_run_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.launch.multi_node.nodes import Nodes
    from explicit_learning.launch.signals import StopRequest
    from explicit_learning.rundir.outcome import RankOutcome

__all__ = ["Lead", "follow"]

# A scheduler starts nodes minutes apart; gates may hash for minutes on the one that has the slowest disk.
JOIN_SECONDS = 600.0
# Ranks that lost a peer fail in their next collective, and an agent gives its own 30 s.
LAST_WORD_SECONDS = 120.0
# Node 0 may be waiting for a third one's last word.
VERDICT_SECONDS = 2 * LAST_WORD_SECONDS
GOODBYE_SECONDS = 10.0
# A client of a network file system may remember for a minute that a file was not there.
SIGHT_SECONDS = 90.0
SIGHT_POLL_SECONDS = 0.5
# What must be the same on all nodes; paths may differ.
SHARED = ("plan", "running_commit")


class Lead:
    """Node 0's side of a launch."""

    def __init__(self, nodes: Nodes, *, stop: StopRequest, say: Callable[[str], None]) -> None:
        """Listen for the others.

        Raises:
            MeetingError: If that is not possible.
        """
        self._nodes, self._stop, self._say = nodes, stop, say
        self._meeting = Meeting(nodes, seconds=JOIN_SECONDS, stopped=stop.requested)
        self._silent: set[int] = set()

    def run(
        self, manifest: LaunchManifest, folder: Path, *, rank_module: str, patience: float
    ) -> tuple[RankOutcome, ...]:
        """Wait for all nodes, run this one's ranks, and return the outcomes of all.

        Raises:
            AskedToStopError: If a node is asked to stop before all have come.
            MeetingError: If a node does not come, brings another plan or other code, or sees another run folder.
            OSError, RuntimeError: If ranks cannot be started.
        """
        self._say(f"node 0 of {self._nodes.count}: waiting for the others at {self._nodes.host}:{self._nodes.port}")
        self._meeting.say("run manifest", manifest.run_manifest_sha256)
        try:
            joined = [self._admit(rank, manifest) for rank in self._others()]
        except MeetingError as error:
            with suppress(MeetingError):
                stopped = isinstance(error, AskedToStopError)
                self._meeting.say("launch manifest", {"refused": str(error), "stopped": stopped})
            raise
        append_event(manifest.run, "nodes", {"launch_id": manifest.launch_id, "nodes": joined})
        self._meeting.say("launch manifest", {"document": to_json(manifest), "nnodes": self._nodes.count})
        end = launch(
            manifest,
            folder,
            stop=self._stop,
            say=self._say,
            rank_module=rank_module,
            patience=patience,
            nodes=self._nodes,
        )
        ends = [end, *(word for rank in self._others() if (word := self._last_word(rank)) is not None)]
        return settle(manifest.run, ends, world_size=manifest.plan.hardware.world_size)

    def tell(self, code: ExitCode) -> None:
        """Tell the others the exit code, and wait for a moment until they have heard it."""
        with suppress(MeetingError):
            self._meeting.say("exit code", int(code))
            for rank in self._others():
                if rank not in self._silent and self._meeting.is_there(f"node {rank}"):
                    self._meeting.hear(f"goodbye of node {rank}", seconds=GOODBYE_SECONDS)

    def _others(self) -> range:
        return range(1, self._nodes.count)

    def _admit(self, rank: int, manifest: LaunchManifest) -> dict[str, Any]:
        word: dict[str, Any] = self._meeting.hear(f"node {rank}", seconds=JOIN_SECONDS, stopped=self._stopped)
        for name, value in _shared(manifest, self._nodes, sees_run=True).items():
            if word["launch"].get(name) != value:
                raise MeetingError(
                    f"node {rank} has another {name.replace('_', ' ')} than node 0: start the same on all"
                )
        facts: dict[str, Any] = word["facts"]
        return {"node": rank} | facts

    def _stopped(self) -> bool:
        return self._stop.requested() or self._meeting.is_there("stop")

    def _last_word(self, rank: int) -> NodeEnd | None:
        try:
            return NodeEnd.from_json(self._meeting.hear(f"end of node {rank}", seconds=LAST_WORD_SECONDS))
        except MeetingError as error:
            self._silent.add(rank)
            self._say(f"node {rank} is lost: {error}")
            return None


def _shared(manifest: LaunchManifest | FollowerManifest, nodes: Nodes, *, sees_run: bool) -> dict[str, Any]:
    same = {name: to_json(getattr(manifest, name)) for name in SHARED}
    return same | {"nnodes": nodes.count, "run folder": sees_run}


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


def follow(
    nodes: Nodes, *, stop: StopRequest, say: Callable[[str], None], rank_module: str, patience: float
) -> ExitCode:
    """Be one of the other nodes, from joining to the exit code that node 0 gives.

    Raises:
        Refusal: If the launch manifest cannot be read.
    """
    own = read_follower_manifest()
    folder = Path(os.environ[MANIFEST_VARIABLE]).parent
    try:
        say(f"node {nodes.rank} of {nodes.count}: meeting node 0 at {nodes.host}:{nodes.port}")
        meeting = Meeting(nodes, seconds=JOIN_SECONDS, stopped=stop.requested)
        if not meeting.claim(f"node {nodes.rank}"):
            say(
                f"node {nodes.rank} is here already: start each node once (one task a node under SLURM), or all again "
                "with another --rdzv-id"
            )
            return ExitCode.USAGE
        sha256 = meeting.hear("run manifest", seconds=JOIN_SECONDS, stopped=stop.requested)
        sees_run = _sees_run(Path(own.run_folder), sha256, stop.requested)
        launch_of_own = _shared(own, nodes, sees_run=sees_run)
        meeting.say(
            f"node {nodes.rank}", {"launch": launch_of_own, "facts": {"hardware": own.hardware, "image": own.image}}
        )
        answer = _await_manifest(meeting, nodes, stop)
    except MeetingError as error:
        say(str(error))
        return ExitCode.STOPPED if stop.requested() else ExitCode.INTERNAL
    if "refused" in answer:
        say(f"node 0 does not start: {answer['refused']}")
        with suppress(MeetingError):
            meeting.say(f"goodbye of node {nodes.rank}", True)  # noqa: FBT003 - a JSON value
        return ExitCode.STOPPED if answer["stopped"] else ExitCode.INTERNAL
    if answer["nnodes"] != nodes.count:
        say(f"node 0 counts {answer['nnodes']} nodes, this one {nodes.count}: start the same --nnodes on all")
        return ExitCode.USAGE
    # The same run, where this machine sees it.
    sent = parsed(answer["document"], LaunchManifest, gate="launch", file="the launch manifest of node 0")
    manifest = replace(sent, run_folder=own.run_folder, paths=own.paths)
    os.environ |= write_launch_manifest(folder / "launch.json", manifest)
    try:
        end = launch(
            manifest, folder, stop=stop, say=say, rank_module=rank_module, patience=patience, nodes=nodes
        ).to_json()
    except Exception as error:  # noqa: BLE001 - node 0 must hear of it
        say(str(failed(error).message))
        end = NodeEnd(ranks={}, end_reason=None).to_json()
    try:
        meeting.say(f"end of node {nodes.rank}", end)
        code = ExitCode(meeting.hear("exit code", seconds=VERDICT_SECONDS))
        meeting.say(f"goodbye of node {nodes.rank}", True)  # noqa: FBT003 - a JSON value
    except MeetingError as error:
        say(f"the run ended without node 0's word: {error}; start all nodes again, and it goes on from its checkpoint")
        return ExitCode.INTERNAL
    return code


def _await_manifest(meeting: Meeting, nodes: Nodes, stop: StopRequest) -> dict[str, Any]:
    """Return what node 0 says when all nodes are there; one that leaves before that says so."""
    try:
        answer: dict[str, Any] = meeting.hear("launch manifest", seconds=JOIN_SECONDS, stopped=stop.requested)
    except AskedToStopError:
        with suppress(MeetingError):
            meeting.say("stop", True)  # noqa: FBT003 - a JSON value
            meeting.say(f"goodbye of node {nodes.rank}", True)  # noqa: FBT003 - a JSON value
        raise
    return answer
