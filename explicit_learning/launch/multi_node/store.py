"""What the launchers of several nodes share: a key-value store that node 0's launcher serves.

Through it go the launch manifest (node 0 made it, under the run's lock), every node's report of how its ranks ended,
and the exit code with which all launchers end. It is the same store, at the same address, in which torch's c10d
rendezvous keeps its state, so there is one port to open. Each wait ends: at a stop signal, or after a time that its
caller names.
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

from explicit_learning.launch.multi_node.nodes import MultiNodeError, StopRequestedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from explicit_learning.launch.multi_node.nodes import NodePlace

__all__ = ["NodeStore"]

POLL_SECONDS = 0.2
ATTEMPT_SECONDS = 5.0
PROBE_SECONDS = 1.0
ANSWER_SECONDS = 30.0
ALL_AGAIN = "start all nodes again: the run continues from its newest checkpoint"


class NodeStore:
    """One launcher's connection to the store. A key is a phrase that messages show, such as ``report of node 1``."""

    def __init__(self, node: NodePlace, *, seconds: float, stopped: Callable[[], bool]) -> None:
        """Serve the store on node 0, or connect to it from another.

        Args:
            node: This node's place.
            seconds: How long another node tries to connect.
            stopped: Whether to give up before that.

        Raises:
            StopRequestedError: If ``stopped`` returns true before that.
            MultiNodeError: If node 0 cannot listen, or does not answer within ``seconds``.
        """
        self._node = node
        self._address = f"{node.host}:{node.port}"
        self._gone: str | None = None
        self._store = self._serve() if node.rank == 0 else self._connect(seconds, stopped)

    def _serve(self) -> TCPStore:
        try:
            return self._open()
        except RuntimeError as error:
            raise MultiNodeError(
                f"node 0 cannot listen at {self._address} ({str(error).splitlines()[0]})",
                "end the program that uses this port, or give all nodes another address of node 0 (--rdzv-endpoint, "
                "or EXPLICIT_RDZV_ENDPOINT under SLURM)",
            ) from None

    def _connect(self, seconds: float, stopped: Callable[[], bool]) -> TCPStore:
        end = time.monotonic() + seconds
        while True:
            if stopped():
                raise StopRequestedError(f"a stop was requested before node 0 answered at {self._address}")
            if time.monotonic() > end:
                raise MultiNodeError(
                    f"node 0 does not answer at {self._address} within {seconds:.0f} s",
                    "start node 0 of the same launch, and let this machine reach its port",
                )
            # torch's own attempts take seconds in which no signal is noted, and fill the console with addresses.
            if self._port_is_open():
                with suppress(RuntimeError):
                    return self._open()
            time.sleep(POLL_SECONDS)

    def _port_is_open(self) -> bool:
        try:
            with socket.create_connection((self._node.host, self._node.port), timeout=PROBE_SECONDS):
                return True
        except OSError:
            return False

    def _open(self) -> TCPStore:
        return TCPStore(
            self._node.host,
            self._node.port,
            is_master=self._node.rank == 0,
            multi_tenant=True,  # the rendezvous opens it once more
            wait_for_workers=False,
            timeout=timedelta(seconds=ATTEMPT_SECONDS),
        )

    def claim(self, name: str) -> bool:
        """Return whether this is the first claim of a name.

        Raises:
            MultiNodeError: If node 0 is gone.
        """
        return self.add(f"claim of {name}", 1) == 1

    def add(self, key: str, amount: int) -> int:
        """Add to a number that begins at 0, and return the sum.

        Raises:
            MultiNodeError: If node 0 is gone.
        """
        return int(self._ask(lambda: self._store.add(self._key(key), amount)))

    def put(self, key: str, value: object) -> None:
        """Store a JSON value for the other nodes.

        Raises:
            MultiNodeError: If node 0 is gone.
        """
        self._ask(lambda: self._store.set(self._key(key), json.dumps(value)))

    def wait_for(
        self, key: str, *, seconds: float, since: float | None = None, stopped: Callable[[], bool] | None = None
    ) -> Any:  # noqa: ANN401 - any JSON value
        """Wait until a node stores a value, and return it.

        Args:
            key: Its key.
            seconds: How long.
            since: When that time began, in seconds of the monotonic clock; now by default.
            stopped: Whether to give up before that; it may raise an error of its own.

        Raises:
            StopRequestedError: If ``stopped`` returns true before that.
            MultiNodeError: If it does not come, or if node 0 is gone.
        """
        end = (time.monotonic() if since is None else since) + seconds
        while not self.exists(key):
            if stopped is not None and stopped():
                raise StopRequestedError(f"a stop was requested while this node waited for the {key}")
            if time.monotonic() > end:
                raise MultiNodeError(f"the {key} did not arrive within {seconds:.0f} s", ALL_AGAIN)
            time.sleep(POLL_SECONDS)
        return json.loads(self._ask(lambda: self._store.get(self._key(key))))

    def wait_for_all(self, keys: Iterable[str], *, seconds: float, stopped: Callable[[], bool] | None = None) -> None:
        """Wait until nodes have stored a value under each key.

        Raises:
            StopRequestedError: If ``stopped`` returns true before that.
            MultiNodeError: If one does not come within ``seconds`` for all together, or if node 0 is gone.
        """
        since = time.monotonic()
        for key in keys:
            self.wait_for(key, seconds=seconds, since=since, stopped=stopped)

    def exists(self, key: str) -> bool:
        """Return whether a node has stored a value.

        Raises:
            MultiNodeError: If node 0 is gone.
        """
        return bool(self._ask(lambda: self._store.check([self._key(key)])))

    def _ask(self, operation: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the store answers
        """Return the store's answer.

        If node 0's machine, or the network to it, fails without closing the connection, torch waits as long as the
        kernel sends again, a quarter of an hour, and handles no signal meanwhile: so a thread waits for it, which is
        left behind. Once node 0 is gone, it is not asked again.
        """
        if self._gone is not None:
            raise MultiNodeError(self._gone, ALL_AGAIN)
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
            self._gone = f"node 0 is gone (no answer from {self._address} for {ANSWER_SECONDS:.0f} s)"
            raise MultiNodeError(self._gone, ALL_AGAIN) from None
        if error is not None:
            self._gone = f"node 0 is gone ({str(error).splitlines()[0]})"
            raise MultiNodeError(self._gone, ALL_AGAIN)
        return answer

    def _key(self, key: str) -> str:
        return f"explicit-learning/{self._node.rendezvous_id}/{key}"
