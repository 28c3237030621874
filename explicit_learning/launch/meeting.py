"""Where the launchers of several nodes meet: a key-value store that node 0's launcher serves.

Through it go the launch manifest (node 0 made it, under the run's lock), every node's last word about its ranks, and
the exit code that all end with. It is the same store, at the same address, that torch's c10d rendezvous keeps its state
in, so there is one port to open. Each wait ends: when a person asks for it, or after a time that its caller names.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import TCPStore  # type: ignore[attr-defined] # not in torch's list of exports

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.launch.nodes import Nodes

__all__ = ["Meeting", "MeetingError"]

POLL_SECONDS = 0.2
ATTEMPT_SECONDS = 5.0


class MeetingError(RuntimeError):
    """The other nodes cannot be met, or not any more."""


class Meeting:
    """One launcher's way to the others."""

    def __init__(self, nodes: Nodes, *, seconds: float, stopped: Callable[[], bool]) -> None:
        """Serve the store on node 0, or reach it from another.

        Raises:
            MeetingError: If that is not possible within ``seconds``.
        """
        self._nodes = nodes
        self._store = self._open(time.monotonic() + seconds, stopped)

    def _open(self, end: float, stopped: Callable[[], bool]) -> TCPStore:
        while True:
            try:
                return TCPStore(
                    self._nodes.host,
                    self._nodes.port,
                    is_master=self._nodes.rank == 0,
                    multi_tenant=True,  # the rendezvous opens it once more
                    wait_for_workers=False,
                    timeout=timedelta(seconds=ATTEMPT_SECONDS),
                )
            except RuntimeError as error:
                where = f"{self._nodes.host}:{self._nodes.port}"
                if self._nodes.rank == 0:
                    raise MeetingError(f"cannot listen at {where}: {str(error).splitlines()[0]}") from None
                if stopped():
                    raise MeetingError(f"asked to stop before node 0 answered at {where}") from None
                if time.monotonic() > end:
                    raise MeetingError(f"node 0 does not answer at {where}") from None

    def say(self, what: str, document: object) -> None:
        """Leave something for the other nodes.

        Raises:
            MeetingError: If node 0 is gone.
        """
        try:
            self._store.set(self._key(what), json.dumps(document))
        except RuntimeError as error:
            raise _gone(error) from None

    def hear(self, what: str, *, seconds: float, stopped: Callable[[], bool] | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Wait for something that another node leaves.

        Args:
            what: Its name.
            seconds: How long.
            stopped: Whether to give up before that.

        Raises:
            MeetingError: If it does not come, or if node 0 is gone.
        """
        end = time.monotonic() + seconds
        while not self._is_there(what):
            if stopped is not None and stopped():
                raise MeetingError(f"asked to stop while waiting for {what}")
            if time.monotonic() > end:
                raise MeetingError(f"no {what} within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)
        try:
            return json.loads(self._store.get(self._key(what)))
        except RuntimeError as error:
            raise _gone(error) from None

    def _is_there(self, what: str) -> bool:
        try:
            return bool(self._store.check([self._key(what)]))
        except RuntimeError as error:
            raise _gone(error) from None

    def _key(self, what: str) -> str:
        return f"explicit-learning/{self._nodes.meeting}/{what}"


def _gone(error: RuntimeError) -> MeetingError:
    return MeetingError(f"node 0 is gone ({str(error).splitlines()[0]})")
