"""How the launchers of several nodes learn that one of them cannot go on.

Ranks do not always notice that another has gone: before they are connected they wait for it for half an hour, and a
connection to a machine that lost its power or its network looks open for as long. So each launcher looks at the store
once a second, in a thread. A node whose ranks fail stores that there, and all other nodes end their ranks too. Each
node counts up a sign of life there; node 0 tells the others about a node that gives none. A store that does not answer
means that node 0 is gone.
"""

from __future__ import annotations

import logging
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from explicit_learning.errors import ExitCode
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.launch.multi_node.messages import FAILURE, NodeFailure, failure_of, sign_of_life_of
from explicit_learning.launch.multi_node.nodes import MultiNodeError
from explicit_learning.launch.outcomes import node_end_of_error, outcome_of_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from explicit_learning.launch.multi_node.nodes import NodePlace
    from explicit_learning.launch.multi_node.store import NodeStore
    from explicit_learning.launch.outcomes import NodeEnd

__all__ = ["READ_THAT_NODE", "NodeWatch"]

LOOK_SECONDS = 1.0
# Looks, not seconds: a launcher that was itself suspended must not take the others for dead.
SILENT_LOOKS = 30
READ_THAT_NODE = "read what that node printed, then start all nodes again"


class NodeWatch:
    """One launcher's look at the others, from its joining to its end. Any thread may ask it.

    It is a context: an error that leaves it is announced to the others.

    Attributes:
        node: This node's place.
    """

    def __init__(self, node: NodePlace, store: NodeStore, *, look_seconds: float = LOOK_SECONDS) -> None:
        """Start to look.

        Args:
            node: This node's place.
            store: Its connection to the store.
            look_seconds: Time between two looks.
        """
        self.node, self._store, self._look_seconds = node, store, look_seconds
        self._own: NodeFailure | None = None
        self._other: NodeFailure | None = None
        self._silent: dict[int, str] = {}
        self._looks: dict[int, tuple[int, int]] = {}
        self._is_told = self._is_ended = False
        self._wake = Event()
        self._thread = Thread(target=self._look_until_ended, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop looking, and announce an error."""
        if error is not None:
            self._announce(failure_of(self.node.rank, error))
        self.stop()

    def announce(self, reason: str, *, at_once: bool = False) -> None:
        """Make the other nodes end their ranks. Only the first call counts, and none waits for the store.

        Args:
            reason: What a person reads on the other nodes behind this node's name.
            at_once: Whether they kill them.
        """
        reason, code = f"node {self.node.rank}: {reason}", int(ExitCode.INTERNAL)
        self._announce(NodeFailure(node=self.node.rank, reason=reason, exit_code=code, at_once=at_once))

    def _announce(self, failure: NodeFailure) -> None:
        if self._own is None:
            self._own = failure
            self._wake.set()

    def failure(self) -> NodeFailure | None:
        """Return why this node must not go on, if another node has failed or is lost."""
        return self._other

    def is_silent(self, rank: int) -> bool:
        """Return whether a node that had joined gives no sign of life any more; only node 0 knows that."""
        return rank in self._silent

    def require_life(self, rank: int) -> None:
        """Raise if a node `is_silent`.

        Raises:
            MultiNodeError: If so.
        """
        if rank in self._silent:
            raise MultiNodeError(self._silent[rank], READ_THAT_NODE)

    def run_ranks(self, run: Callable[[], NodeEnd], ranks: range) -> NodeEnd:
        """Return how this node's ranks ended; an error in it is announced, and is how each of them ended.

        Args:
            run: Runs them until they have ended.
            ranks: Their numbers among all.
        """
        try:
            return run()
        except Exception as error:
            self.announce(f"its ranks could not be run ({type(error).__name__}: {error})")
            if outcome_of_error(error).code is ExitCode.INTERNAL:
                logging.getLogger(__name__).exception("the ranks of this node could not be run")
            return node_end_of_error(error, ranks)

    def stop(self) -> None:
        """Stop looking, once this node's own failure is told."""
        self._is_ended = True
        self._wake.set()
        self._thread.join()

    def _look_until_ended(self) -> None:
        try:
            while not self._is_ended:
                self._look()
                self._wake.wait(self._look_seconds)
                self._wake.clear()
            self._look()  # what was announced last must be told
        except MultiNodeError as error:  # no store: there is nothing more to see, and nobody to tell
            self._other = NodeFailure(node=0, reason=error.found, at_once=True, exit_code=int(ExitCode.INTERNAL))
        except Exception as error:  # noqa: BLE001 - a node that does not look any more would wait for a lost one
            self._other = failure_of(self.node.rank, error)

    def _look(self) -> None:
        if self.node.rank > 0:
            self._store.add(sign_of_life_of(self.node.rank), 1)
        else:
            self._find_silent_nodes()
        if self._own is not None and not self._is_told:
            self._store.put(FAILURE, to_json(self._own))
            self._is_told = True
        if self._other is None and self._store.exists(FAILURE):
            told = from_json(NodeFailure, self._store.wait_for(FAILURE, seconds=0))
            self._other = None if told.node == self.node.rank else told

    def _find_silent_nodes(self) -> None:
        """Note nodes that gave a sign of life once, and then none for `SILENT_LOOKS`; tell the others of the first."""
        for rank in range(1, self.node.count):
            count = self._store.add(sign_of_life_of(rank), 0)
            before, looks = self._looks.get(rank, (0, 0))
            looks = looks + 1 if count == before else 0
            self._looks[rank] = (count, looks)
            if count == 0 or looks < SILENT_LOOKS or rank in self._silent:
                continue
            self._silent[rank] = f"no sign of life for {SILENT_LOOKS * self._look_seconds:.0f} s"
            if self._other is None:
                code = int(ExitCode.INTERNAL)
                reason = f"node {rank} is lost: {self._silent[rank]}"
                self._other = NodeFailure(node=rank, reason=reason, at_once=True, exit_code=code)
                self._store.put(FAILURE, to_json(self._other))
