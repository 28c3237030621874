"""The store that launchers of several nodes share: what one puts, another gets; every wait ends."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.launch.multi_node.nodes import MultiNodeError, NodePlace, StopRequestedError

if TYPE_CHECKING:
    from explicit_learning.launch.multi_node.store import NodeStore

pytestmark = pytest.mark.slow  # imports torch


def never() -> bool:
    return False


def always() -> bool:
    return True


def place() -> NodePlace:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = int(free.getsockname()[1])
    return NodePlace(
        count=2, rank=0, host="127.0.0.1", port=port, rendezvous_id="x", address="127.0.0.1", interface="lo"
    )


@pytest.fixture
def stores() -> tuple[NodeStore, NodeStore]:
    from explicit_learning.launch.multi_node.store import NodeStore

    first = place()
    return (
        NodeStore(first, seconds=1, stopped=never),
        NodeStore(replace(first, rank=1), seconds=10, stopped=never),
    )


def test_a_value_comes_to_the_other_node_as_it_was_put(stores: tuple[NodeStore, NodeStore]) -> None:
    first, second = stores
    assert not second.exists("exit code")
    first.put("exit code", {"code": [75, None]})
    assert second.exists("exit code")
    assert second.wait_for("exit code", seconds=1) == {"code": [75, None]}


def test_only_the_first_claim_of_a_name_succeeds(stores: tuple[NodeStore, NodeStore]) -> None:
    first, second = stores
    assert [second.claim("node 1"), first.claim("node 1"), first.claim("node 2")] == [True, False, True]


def test_a_wait_ends_after_its_time_or_at_a_stop(stores: tuple[NodeStore, NodeStore]) -> None:
    _, second = stores
    with pytest.raises(MultiNodeError, match="the exit code did not arrive within 0 s: start all nodes again"):
        second.wait_for("exit code", seconds=0)
    with pytest.raises(StopRequestedError, match="a stop was requested while this node waited for the exit code"):
        second.wait_for("exit code", seconds=60, stopped=always)


def test_a_connection_ends_after_its_time_or_at_a_stop() -> None:
    from explicit_learning.launch.multi_node.store import NodeStore

    second = replace(place(), rank=1)
    with pytest.raises(MultiNodeError, match=r"node 0 does not answer at 127\.0\.0\.1:\d+ within 0 s"):
        NodeStore(second, seconds=0, stopped=never)
    with pytest.raises(StopRequestedError, match="a stop was requested before node 0 answered"):
        NodeStore(second, seconds=60, stopped=always)
