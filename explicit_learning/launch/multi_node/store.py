"""Where the launchers of several nodes meet: a key-value store that node 0's launcher serves.

Through it go the launch manifest (node 0 made it, under the run's lock), every node's last word about its ranks, and
the exit code that all end with. It is the same store, at the same address, that torch's c10d rendezvous keeps its state
in, so there is one port to open. Each wait ends: when a person asks for it, or after a time that its caller names.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from torch.distributed import TCPStore  # type: ignore[attr-defined] # not in torch's list of exports

from explicit_learning.launch.multi_node.nodes import AskedToStopError, MeetingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.launch.multi_node.nodes import Nodes

__all__ = ["Meeting"]

POLL_SECONDS = 0.2
ATTEMPT_SECONDS = 5.0
PROBE_SECONDS = 1.0
ANSWER_SECONDS = 30.0


class Meeting:
    """One launcher's way to the others."""

    def __init__(self, nodes: Nodes, *, seconds: float, stopped: Callable[[], bool]) -> None:
        """Serve the store on node 0, or reach it from another.

        Raises:
            AskedToStopError: If ``stopped`` says so before that.
            MeetingError: If that is not possible within ``seconds``.
        """
        self._nodes = nodes
        self._where = f"{nodes.host}:{nodes.port}"
        self._store = self._serve() if nodes.rank == 0 else self._reach(seconds, stopped)

    def _serve(self) -> TCPStore:
        try:
            return self._open()
        except RuntimeError as error:
            raise MeetingError(
                f"cannot listen at {self._where} ({str(error).splitlines()[0]}): end what uses this port, or name "
                "another address of node 0 to all nodes (--rdzv-endpoint, or EXPLICIT_RDZV_ENDPOINT under SLURM)"
            ) from None

    def _reach(self, seconds: float, stopped: Callable[[], bool]) -> TCPStore:
        end = time.monotonic() + seconds
        while True:
            if stopped():
                raise AskedToStopError(f"asked to stop before node 0 answered at {self._where}")
            if time.monotonic() > end:
                raise MeetingError(
                    f"node 0 does not answer at {self._where} within {seconds:.0f} s: start node 0 of the same launch, "
                    "and let this machine reach its port"
                )
            # torch's own attempts take seconds in which no signal is noted, and fill the console with addresses.
            if self._somebody_listens():
                with suppress(RuntimeError):
                    return self._open()
            time.sleep(POLL_SECONDS)

    def _somebody_listens(self) -> bool:
        try:
            with socket.create_connection((self._nodes.host, self._nodes.port), timeout=PROBE_SECONDS):
                return True
        except OSError:
            return False

    def _open(self) -> TCPStore:
        return TCPStore(
            self._nodes.host,
            self._nodes.port,
            is_master=self._nodes.rank == 0,
            multi_tenant=True,  # the rendezvous opens it once more
            wait_for_workers=False,
            timeout=timedelta(seconds=ATTEMPT_SECONDS),
        )

    def claim(self, what: str) -> bool:
        """Return whether nobody has claimed this before.

        Raises:
            MeetingError: If node 0 is gone.
        """
        return int(self._ask(lambda: self._store.add(self._key(f"claim of {what}"), 1))) == 1

    def say(self, what: str, document: object) -> None:
        """Leave something for the other nodes.

        Raises:
            MeetingError: If node 0 is gone.
        """
        self._ask(lambda: self._store.set(self._key(what), json.dumps(document)))

    def hear(self, what: str, *, seconds: float, stopped: Callable[[], bool] | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Wait for something that another node leaves.

        Args:
            what: Its name.
            seconds: How long.
            stopped: Whether to give up before that.

        Raises:
            AskedToStopError: If ``stopped`` says so before that.
            MeetingError: If it does not come, or if node 0 is gone.
        """
        end = time.monotonic() + seconds
        while not self.is_there(what):
            if stopped is not None and stopped():
                raise AskedToStopError(f"asked to stop while waiting for {what}")
            if time.monotonic() > end:
                raise MeetingError(f"no {what} within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)
        return json.loads(self._ask(lambda: self._store.get(self._key(what))))

    def is_there(self, what: str) -> bool:
        """Return whether a node has left something.

        Raises:
            MeetingError: If node 0 is gone.
        """
        return bool(self._ask(lambda: self._store.check([self._key(what)])))

    def _ask(self, operation: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the store answers
        """Return the store's answer.

        Where node 0's machine or the way to it is gone without a word, torch waits as long as the kernel sends again, a
        quarter of an hour, and is deaf to signals meanwhile: so a thread waits for it, which is left behind.
        """
        answers: SimpleQueue[tuple[Any, RuntimeError | None]] = SimpleQueue()

        def ask() -> None:
            try:
                answers.put((operation(), None))
            except RuntimeError as error:
                answers.put((None, error))

        Thread(target=ask, daemon=True).start()
        try:
            answer, error = answers.get(timeout=ANSWER_SECONDS)
        except Empty:
            raise MeetingError(f"node 0 is gone (no answer from {self._where} for {ANSWER_SECONDS:.0f} s)") from None
        if error is not None:
            raise MeetingError(f"node 0 is gone ({str(error).splitlines()[0]})")
        return answer

    def _key(self, what: str) -> str:
        return f"explicit-learning/{self._nodes.meeting}/{what}"
