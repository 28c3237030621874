"""What a launcher learns of the others, without processes: failures, silent nodes, and a node 0 that is gone."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.launch.multi_node.messages import FAILURE, NodeFailure, failure_of, sign_of_life_of
from explicit_learning.launch.multi_node.nodes import MultiNodeError, NodePlace
from explicit_learning.launch.multi_node.watch import SILENT_LOOKS, NodeWatch
from explicit_learning.launch.outcomes import NodeEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.launch.multi_node.store import NodeStore

LOOK_SECONDS = 0.01


@dataclass
class Store:
    """A store in memory, for all nodes."""

    values: dict[str, Any] = field(default_factory=dict)
    is_gone: bool = False

    def _require(self) -> None:
        if self.is_gone:
            raise MultiNodeError("node 0 is gone (no answer)", "start all nodes again")

    def add(self, key: str, amount: int) -> int:
        self._require()
        self.values[key] = self.values.get(key, 0) + amount
        return int(self.values[key])

    def put(self, key: str, value: object) -> None:
        self._require()
        self.values[key] = value

    def exists(self, key: str) -> bool:
        self._require()
        return key in self.values

    def wait_for(self, key: str, *, seconds: float) -> Any:
        assert seconds == 0
        return self.values[key]


def place(rank: int, count: int = 3) -> NodePlace:
    return NodePlace(count=count, rank=rank, host="h", port=1, rendezvous_id="x", address="127.0.0.1", interface="lo")


def watch_of(rank: int, store: Store) -> NodeWatch:
    return NodeWatch(place(rank), cast("NodeStore", store), look_seconds=LOOK_SECONDS)


def eventually(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + 20
    while not (value := found()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)
    return value


def test_a_failure_reaches_all_other_nodes_and_not_its_own() -> None:
    store = Store()
    with watch_of(0, store) as first, watch_of(1, store) as second, watch_of(2, store) as third:
        assert first.failure() is None
        second.announce("a rank failed")
        second.announce("a later word", at_once=True)
        for watch in (first, third):
            failure: NodeFailure = eventually(watch.failure)
            assert (failure.node, failure.reason, failure.at_once) == (1, "node 1: a rank failed", False)
        assert second.failure() is None


def test_an_error_that_ends_a_launcher_is_told_with_its_code() -> None:
    store, context = Store(), Context(gate="nodes", fix="y", exit_code=ExitCode.HARDWARE)

    def leave_by(error: Exception) -> None:
        with watch_of(1, store):
            raise error

    with pytest.raises(ZeroDivisionError):
        leave_by(ZeroDivisionError("by zero"))
    reason = "node 1: ZeroDivisionError: by zero"
    assert store.values[FAILURE] == {"node": 1, "reason": reason, "exit_code": 70, "at_once": False}
    refusal = context.refusal(found="another GPU", expected="x")
    with pytest.raises(type(refusal)):
        leave_by(refusal)
    assert store.values[FAILURE] == {
        "node": 1,
        "reason": "node 1 is refused [nodes] found another GPU, expected x",
        "exit_code": 69,
        "at_once": False,
    }
    assert failure_of(2, Refusal([context.fault(file="plan.json", pointer="/seed", found="a", expected="b")] * 3)) == (
        NodeFailure(
            node=2,
            reason="node 2 is refused [nodes] plan.json /seed: found a, expected b (and 2 more faults)",
            exit_code=69,
        )
    )


def test_a_node_that_falls_silent_is_lost_and_one_that_never_spoke_is_not() -> None:
    store = Store()
    with watch_of(0, store) as first, watch_of(2, store) as third:
        store.add(sign_of_life_of(1), 1)
        for watch in (first, third):
            failure: NodeFailure = eventually(watch.failure)
            reason = f"node 1 is lost: no sign of life for {SILENT_LOOKS * LOOK_SECONDS:.0f} s"
            assert (failure.node, failure.reason, failure.at_once) == (1, reason, True)
        with pytest.raises(MultiNodeError, match=r"^no sign of life for 0 s"):
            first.require_life(1)
        first.require_life(2)

    store = Store()
    with watch_of(0, store) as first:
        time.sleep(3 * SILENT_LOOKS * LOOK_SECONDS)
        assert first.failure() is None, "the nodes have not joined yet"


def test_a_store_that_answers_no_longer_means_that_node_0_is_gone() -> None:
    store = Store()
    with watch_of(1, store) as second:
        eventually(lambda: store.values.get(sign_of_life_of(1)))
        store.is_gone = True
        failure: NodeFailure = eventually(second.failure)
        assert (failure.node, failure.reason, failure.at_once) == (0, "node 0 is gone (no answer)", True)
        second.announce("nobody is told, and nothing is raised")


def test_a_look_that_fails_ends_the_ranks_of_this_node() -> None:
    store = Store(values={FAILURE: "of another form"})
    with watch_of(1, store) as second:
        failure: NodeFailure = eventually(second.failure)
        assert (failure.node, failure.exit_code) == (1, 70)


def test_ranks_that_ended_are_reported_as_they_did() -> None:
    end = NodeEnd(ranks={}, kill_reason=None)
    store = Store()
    with watch_of(1, store) as second:
        assert second.run_ranks(lambda: end, range(1, 2)) is end
    assert FAILURE not in store.values
