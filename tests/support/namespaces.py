"""Two nodes on one machine: network namespaces with a cable between them, and nothing else in common but the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["ADDRESSES", "Node", "lost_packets", "two_nodes"]

# 198.18.0.0/15 is set aside for tests between two networks (RFC 2544): no real machine has such an address.
ADDRESSES = ("198.18.0.1", "198.18.0.2")
NOBODY = "02:00:00:00:00:00"


@dataclass
class Node:
    """One network namespace and the commands that run in it."""

    rank: int
    namespace: str
    interface: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def el(self, log: Path, *arguments: str | Path, launch: str) -> subprocess.Popen[str]:
        """Start the program on this node; its output goes to a file."""
        nodes = ["--nnodes", "2", "--node-rank", str(self.rank)]
        nodes += ["--rdzv-endpoint", f"{ADDRESSES[0]}:29400", "--rdzv-id", launch]
        command = ["ip", "netns", "exec", self.namespace, sys.executable, str(ROOT / "entrypoint.py")]
        with log.open("a") as stream:
            process = subprocess.Popen(
                [*command, *map(str, arguments), *nodes], stdout=stream, stderr=stream, text=True, env=os.environ
            )
        self.processes.append(process)
        return process


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Make two namespaces, and remove them with all that still runs in them."""
    first, second = (
        Node(rank=rank, namespace=f"el-{os.getpid()}-{rank}", interface=f"el{os.getpid() % 100000}{letter}")
        for rank, letter in enumerate("ab")
    )
    nodes = (first, second)
    try:
        for node in nodes:
            _ip("netns", "add", node.namespace)
        _ip("link", "add", first.interface, "type", "veth", "peer", "name", second.interface)
        for node in nodes:
            _ip("link", "set", node.interface, "netns", node.namespace)
            _ip("-n", node.namespace, "address", "add", f"{ADDRESSES[node.rank]}/24", "dev", node.interface)
            _ip("-n", node.namespace, "link", "set", node.interface, "up")
            _ip("-n", node.namespace, "link", "set", "lo", "up")
        yield nodes
    finally:
        for node in nodes:
            for process in node.processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
            subprocess.run(["ip", "netns", "delete", node.namespace], check=False, capture_output=True)


@contextmanager
def lost_packets(nodes: tuple[Node, Node]) -> Iterator[None]:
    """Let nothing that one node sends reach the other, and no connection be closed, as after a power cut."""

    def neighbour(node: Node, *command: str) -> None:
        _ip("-n", node.namespace, "neighbour", *command, "dev", node.interface)

    for node in nodes:
        neighbour(node, "replace", ADDRESSES[1 - node.rank], "lladdr", NOBODY, "nud", "permanent")
    try:
        yield
    finally:
        for node in nodes:
            neighbour(node, "delete", ADDRESSES[1 - node.rank])
