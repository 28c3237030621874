"""Torch's elastic agent, as a library.

``torchrun`` itself turns every failing code into 1, dies of SIGUSR1 leaving its ranks behind, and on SIGTERM raises
inside its loop and gives ranks 30 s. The agent below it does none of that: it starts processes with the right
environment, watches them, and reports each one's exit code. This module uses it as it is and adds three things to each
look at the ranks: it passes a stop signal on, it kills the ranks when a second signal comes, and with several nodes it
tells the others when a rank fails and ends its own when one of theirs does.

When a rank fails, the agent sends SIGTERM to the others and kills them 30 s later. They have nothing to save by then:
a checkpoint is complete only when every rank has written its part.

Several nodes have joined before the agent starts, and each knows its ranks. So the agent itself asks nothing of another
machine, and cannot hang when one is gone.

Ranks are never restarted here. The same command continues a run, in new processes, from a checkpoint whose state is
proven; a restart inside the launcher would continue from a launch manifest that describes another start.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from torch._C._distributed_c10d import HashStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from explicit_learning.errors import ExitCode
from explicit_learning.launch.launch_answer import print_line
from explicit_learning.launch.outcomes import NodeEnd, node_end
from explicit_learning.launch.rank import LAUNCHER_VARIABLE
from explicit_learning.launch.signals import STOP_SIGNALS, blocked_stop_signals
from explicit_learning.launch.stop_policy import stop_now
from explicit_learning.rundir.layout import launcher_log

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    from explicit_learning.launch.multi_node.nodes import NodePlace
    from explicit_learning.launch.multi_node.watch import NodeWatch
    from explicit_learning.launch.signals import StopRequest
    from explicit_learning.rundir.launch_manifest import LaunchManifest

__all__ = ["launch"]

MONITOR_SECONDS = 0.2
LOOPBACK = "127.0.0.1"
AGENT_VARIABLES = {
    # The agent installs handlers of its own for the signals named here, and warns if there are none: ours are put back.
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM",
    # Every node has as many ranks, so that each knows its own without asking.
    "TORCH_ELASTIC_WORKER_IDENTICAL": "1",
}


class _JoinedNodes(StaticTCPRendezvous):
    """The meeting of agents whose nodes have joined (`multi_node`): there is nothing left to wait for."""

    def __init__(self, node: NodePlace, run_id: str) -> None:
        super().__init__(node.host, node.port, node.rank, node.count, run_id, timeout=0)

    def next_rendezvous(self) -> RendezvousInfo:
        """Return at once; ranks meet at node 0's store."""
        address = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(HashStore(), self.rank, self.world_size, address)


class _Agent(LocalElasticAgent):
    """The agent, which looks at the stop request and at the other nodes before each look at the ranks.

    Attributes:
        kill_reason: Why the ranks were killed, if they were.
        failed_first: Ranks that had failed when the first failure was seen; the agent ends the others after that.
    """

    def __init__(self, spec: WorkerSpec, *, stop: StopRequest, patience: float, watch: NodeWatch | None) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull))
        self._stop = stop
        self._patience = patience
        self._watch = watch
        self._passed_on = False
        self.failed_first: frozenset[int] = frozenset()
        self.kill_reason: str | None = None

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        with blocked_stop_signals():
            pids: dict[int, Any] = super()._start_workers(worker_group)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return pids

    def _restart_workers(self, worker_group: WorkerGroup) -> NoReturn:
        del worker_group
        raise RuntimeError("the agent was about to restart the ranks, although max_restarts is 0")

    def _exit_barrier(self) -> None:
        """Wait for nobody: the launchers of several nodes do that themselves (`Leader`)."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._heed_stop_request()
        self._note_first_failures()
        failure = None if self._watch is None or self.failed_first else self._watch.failure()
        if failure is not None:
            print_line(f"{failure.reason}: ending the ranks of this node")
            if failure.at_once:
                self.kill()
            return RunResult(state=WorkerState.FAILED)  # the agent ends them as it does when one of its own has failed
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            self._tell_the_others("a rank failed")
        return result

    def _heed_stop_request(self) -> None:
        """Pass a stop signal on to the ranks, once, and kill them when one calls for that."""
        stop = stop_now(self._stop.arrivals(), time.monotonic(), patience=self._patience)
        if stop is not None and not self._passed_on:
            self._passed_on = True
            print_line(f"{stop.came.name}: stopping at the next checkpoint (send it again to end at once)")
            for handler in self._handlers().values():
                handler.proc.send_signal(stop.signal)
        if stop is not None and stop.kill_reason is not None and self.kill_reason is None:
            self.kill_reason = stop.kill_reason
            print_line(f"ending at once: {stop.kill_reason}")
            self._tell_the_others(stop.kill_reason, at_once=True)
            self.kill()

    def _note_first_failures(self) -> None:
        """Note which ranks have failed before the agent looks at them: it then ends the others, which takes a while."""
        if self.failed_first:
            return
        codes = {local: handler.proc.poll() for local, handler in self._handlers().items()}
        ranks = self.global_ranks()
        self.failed_first = frozenset(ranks[local] for local, code in codes.items() if code)
        if ExitCode.STOPPED in codes.values():
            self._tell_the_others("a rank got a second stop signal", at_once=True)
            self.kill()
        elif self.failed_first:
            self._tell_the_others("a rank failed")

    def _tell_the_others(self, reason: str, *, at_once: bool = False) -> None:
        if self._watch is not None:
            self._watch.announce(reason, at_once=at_once)

    def global_ranks(self) -> list[int]:
        """Return this machine's ranks among all, by local rank."""
        return [worker.global_rank for worker in self._worker_group.workers]

    def _handlers(self) -> dict[int, SubprocessHandler]:
        return self._pcontext.subprocess_handlers if isinstance(self._pcontext, SubprocessContext) else {}

    def kill(self) -> None:
        """Kill every rank with all that it started: the agent makes each the leader of a process group."""
        for handler in self._handlers().values():
            with suppress(ProcessLookupError):
                os.killpg(handler.proc.pid, signal.SIGKILL)


def launch(
    manifest: LaunchManifest,
    *,
    folder: Path,
    stop: StopRequest,
    rank_module: str,
    patience: float,
    watch: NodeWatch | None,
) -> NodeEnd:
    """Run the ranks of this machine until they have ended.

    The environment must name the launch manifest to ranks (see `write_launch_manifest`).

    Args:
        manifest: The launch manifest.
        folder: The launch's private folder, where ranks leave their outcomes.
        stop: Notes the signals that this process gets; its handlers must be installed.
        rank_module: What a rank runs, as in ``python -m``.
        patience: Seconds that ranks have to reach a checkpoint after a stop signal.
        watch: This machine's look at the other nodes; ``None`` where it runs all ranks.

    Returns:
        How each of this machine's ranks ended.

    Raises:
        OSError, RuntimeError: If ranks cannot be started.
    """
    node = None if watch is None else watch.node
    _log_to(manifest.run / launcher_log(None if node is None else node.rank))
    os.environ.update({LAUNCHER_VARIABLE: str(os.getpid())} | AGENT_VARIABLES)
    rendezvous = _rendezvous_of_one_machine() if node is None else _JoinedNodes(node, manifest.launch_id)
    world_size = manifest.plan.hardware.world_size
    spec = WorkerSpec(
        role="rank",
        local_world_size=len(node.ranks(world_size)) if node is not None else world_size,
        entrypoint=sys.executable,
        args=("-m", rank_module),
        rdzv_handler=rendezvous,
        max_restarts=0,
        monitor_interval=MONITOR_SECONDS,
        local_addr=LOOPBACK if node is None else node.address,
    )
    agent = _Agent(spec, stop=stop, patience=patience, watch=watch)
    try:
        result = agent.run()
    finally:
        agent.kill()
        rendezvous.shutdown()
    if result is None:
        raise RuntimeError("the agent ended without a result")
    return node_end(
        folder,
        exit_codes={
            rank: result.failures[rank].exitcode if rank in result.failures else 0 for rank in agent.global_ranks()
        },
        failed_first=agent.failed_first,
        kill_reason=agent.kill_reason or _second_signal_to_a_rank(result),
    )


def _second_signal_to_a_rank(result: RunResult) -> str | None:
    """Return why all ranks were ended, if one of them ended by itself at a second stop signal."""
    ranks = [rank for rank, failure in result.failures.items() if failure.exitcode == ExitCode.STOPPED]
    return f"rank {min(ranks)} got a second stop signal" if ranks else None


def _rendezvous_of_one_machine() -> RendezvousHandler:
    return get_rendezvous_handler(
        RendezvousParameters(
            backend="c10d",
            endpoint=f"{LOOPBACK}:0",
            run_id=uuid.uuid4().hex,
            min_nodes=1,
            max_nodes=1,
            local_addr=LOOPBACK,
        )
    )


def _log_to(path: Path) -> None:
    """Send what torch's agent logs to a file: its tables about failed children would bury the cause on the console."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.raiseExceptions = False  # a log that cannot be written, on a full disk, would bury it too
    logging.basicConfig(filename=path, format="%(asctime)s %(name)s %(message)s")
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
