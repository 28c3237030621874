"""A node that cannot start tells the others, which would wait for it for minutes.

It has not become a launcher: its gates found a fault, or its run cannot be used. So it connects to the store (or serves
it, on node 0) only for this.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from explicit_learning.files.progress import say
from explicit_learning.files.typed_json import to_json
from explicit_learning.launch.multi_node.messages import FAILURE, REFUSAL_SECONDS, failure_of, receipt_of

if TYPE_CHECKING:
    from explicit_learning.launch.multi_node.nodes import NodePlace

__all__ = ["tell_other_nodes"]


def tell_other_nodes(node: NodePlace, error: Exception) -> None:
    """Tell the other nodes why this one does not start, if they can be reached within `REFUSAL_SECONDS`.

    Args:
        node: This node's place.
        error: Why it does not start.
    """
    say(f"node {node.rank} of {node.count} does not start: telling the others, for up to {REFUSAL_SECONDS:.0f} s")
    with suppress(ImportError, OSError, RuntimeError):  # torch, the port or node 0 is missing: nobody can be told
        from explicit_learning.launch.multi_node.store import NodeStore

        store = NodeStore(node, seconds=REFUSAL_SECONDS, stopped=lambda: False)
        store.put(FAILURE, to_json(failure_of(node.rank, error)))
        if node.rank == 0:
            store.wait_for_all(map(receipt_of, range(1, node.count)), seconds=REFUSAL_SECONDS)
        else:
            store.put(receipt_of(node.rank), True)  # noqa: FBT003 - a JSON value
