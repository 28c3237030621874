"""Torch's elastic agent, as a library.

``torchrun`` itself turns every failing code into 1, dies of SIGUSR1 leaving its ranks behind, and on SIGTERM raises
inside its loop and gives ranks 30 s. The agent below it does none of that: it starts processes with the right
environment, watches them, and reports each one's exit code. This module uses it as it is and adds two things to each
look at the ranks: it passes a stop signal on, and it kills the ranks when a second signal comes.

When a rank fails, the agent sends SIGTERM to the others and kills them 30 s later. They have nothing to save by then:
a checkpoint is complete only when every rank has written its part.

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

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

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
    from explicit_learning.launch.signals import StopRequest
    from explicit_learning.rundir.launch_manifest import LaunchManifest

__all__ = ["launch"]

MONITOR_SECONDS = 0.2
LOOPBACK = "127.0.0.1"
# All launchers have joined when the rendezvous starts; and ranks end within a collective of each other.
RENDEZVOUS_SECONDS = EXIT_BARRIER_SECONDS = 120
# The agent installs handlers of its own for the signals named here, and warns if there are none: ours are put back.
AGENT_SIGNALS = {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM"}


class _Agent(LocalElasticAgent):
    """The agent, which looks at the stop request before each look at the ranks.

    Attributes:
        kill_reason: Why the ranks were killed, if they were.
        failed_first: Ranks that had failed when the first failure was seen; the agent ends the others after that.
    """

    def __init__(self, spec: WorkerSpec, *, stop: StopRequest, patience: float) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull), exit_barrier_timeout=EXIT_BARRIER_SECONDS)
        self._stop = stop
        self._patience = patience
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

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        stop = stop_now(self._stop.arrivals(), time.monotonic(), patience=self._patience)
        if stop is not None and not self._passed_on:
            self._passed_on = True
            print_line(f"{stop.came.name}: stopping at the next checkpoint (send it again to end at once)")
            for handler in self._handlers().values():
                handler.proc.send_signal(stop.signal)
        if stop is not None and stop.kill_reason is not None and self.kill_reason is None:
            self.kill_reason = stop.kill_reason
            print_line(f"ending at once: {stop.kill_reason}")
            self.kill()
        if not self.failed_first:
            codes = {local: handler.proc.poll() for local, handler in self._handlers().items()}
            ranks = self.global_ranks()
            self.failed_first = frozenset(ranks[local] for local, code in codes.items() if code)
            if ExitCode.STOPPED in codes.values():
                self.kill()  # a rank got a second stop signal
        result: RunResult = super()._monitor_workers(worker_group)
        return result

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
    node: NodePlace | None,
) -> NodeEnd:
    """Run the ranks of this machine until they have ended.

    The environment must name the launch manifest to ranks (see `write_launch_manifest`).

    Args:
        manifest: The launch manifest.
        folder: The launch's private folder, where ranks leave their outcomes.
        stop: Notes the signals that this process gets; its handlers must be installed.
        rank_module: What a rank runs, as in ``python -m``.
        patience: Seconds that ranks have to reach a checkpoint after a stop signal.
        node: This machine's place among several; ``None`` where it runs all ranks.

    Returns:
        How each of this machine's ranks ended.

    Raises:
        OSError, RuntimeError: If ranks cannot be started.
    """
    _log_to(manifest.run / launcher_log(None if node is None else node.rank))
    os.environ.update({LAUNCHER_VARIABLE: str(os.getpid())} | AGENT_SIGNALS)
    rendezvous = get_rendezvous_handler(_rendezvous(node))
    spec = WorkerSpec(
        role="rank",
        local_world_size=manifest.plan.hardware.world_size // (1 if node is None else node.count),
        entrypoint=sys.executable,
        args=("-m", rank_module),
        rdzv_handler=rendezvous,
        max_restarts=0,
        monitor_interval=MONITOR_SECONDS,
        local_addr=LOOPBACK if node is None else node.address,
    )
    agent = _Agent(spec, stop=stop, patience=patience)
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


def _rendezvous(node: NodePlace | None) -> RendezvousParameters:
    if node is None:
        return RendezvousParameters(
            backend="c10d",
            endpoint=f"{LOOPBACK}:0",
            run_id=uuid.uuid4().hex,
            min_nodes=1,
            max_nodes=1,
            local_addr=LOOPBACK,
        )
    return RendezvousParameters(
        backend="c10d",
        endpoint=f"{node.host}:{node.port}",
        run_id=node.rendezvous_id,
        min_nodes=node.count,
        max_nodes=node.count,
        local_addr=node.address,
        is_host=node.rank == 0,
        join_timeout=RENDEZVOUS_SECONDS,
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
