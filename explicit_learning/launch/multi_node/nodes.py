"""Which machines a run is spread over, and which of them this one is: from flags, or from SLURM's variables.

Every node runs the same command. Node 0 holds the run; the others check the plan by themselves and run their share of
the ranks. All share the run directory (a parallel file system, as clusters have), and connect to an address at which
node 0 listens.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.child_environment import child_environment
from explicit_learning.files.typed_json import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.errors import Fault

__all__ = [
    "NODES_VARIABLE",
    "NODE_FLAGS",
    "MultiNodeError",
    "NodePlace",
    "StopRequestedError",
    "find_node_place",
    "inherited_node_place",
]

NODES_VARIABLE = "EXPLICIT_LAUNCH_NODES"
NODE_FLAGS = ("nnodes", "node_rank", "rdzv_endpoint", "rdzv_id")  # as torchrun names them
DEFAULT_PORT = 29400  # torchrun's
NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
CONTEXT = Context(
    gate="nodes",
    fix="start the same command on every node with --nnodes, --node-rank, --rdzv-endpoint and --rdzv-id",
    exit_code=ExitCode.USAGE,
)


class MultiNodeError(RuntimeError):
    """Another node cannot be reached, or does not fit.

    Attributes:
        found: What is wrong, for the person who started the nodes.
        fix: What that person can do about it.
        exit_code: The code with which all launchers end.
    """

    def __init__(self, found: str, fix: str, *, exit_code: ExitCode = ExitCode.INTERNAL) -> None:
        super().__init__(f"{found}: {fix}")
        self.found = found
        self.fix = fix
        self.exit_code = exit_code


class StopRequestedError(MultiNodeError):
    """A stop signal came to this node or another before any rank had started."""

    def __init__(self, found: str) -> None:
        super().__init__(found, "run the same command again on all nodes", exit_code=ExitCode.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """One node's place among those of a launch.

    Attributes:
        count: How many nodes there are; at least 2.
        rank: This one, from 0.
        host: Where node 0 listens.
        port: Its port.
        rendezvous_id: Name of this launch, the same on all nodes (torchrun's ``--rdzv-id``).
        address: This node's own address on the way to ``host``: where its ranks can be reached.
        interface: The network interface that has that address.
    """

    count: int
    rank: int
    host: str
    port: int
    rendezvous_id: str
    address: str
    interface: str

    def ranks(self, world_size: int) -> range:
        """Return this node's ranks among all: every node has as many."""
        each = world_size // self.count
        return range(self.rank * each, (self.rank + 1) * each)

    def variables(self) -> dict[str, str]:
        """Return the environment variable that carries this to the launcher (`inherited_node_place`)."""
        return {NODES_VARIABLE: json.dumps(to_json(self))}


def inherited_node_place(environment: Mapping[str, str]) -> NodePlace | None:
    """Return the node's place that the light process found; ``None`` for a run on one machine."""
    text = environment.get(NODES_VARIABLE)
    return from_json(NodePlace, json.loads(text)) if text else None


def find_node_place(flags: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> NodePlace | None:
    """Return this node's place; ``None`` for a run on one machine.

    Args:
        flags: The flags that were given, of `NODE_FLAGS`.
        environment: Where SLURM's variables are; they count where ``nnodes`` is not given.

    Raises:
        Refusal: With exit code 64, and everything that is missing or wrong.
    """
    values = (_slurm(environment) if "nnodes" not in flags else {}) | dict(flags)
    if values.get("nnodes", "1") == "1":
        expected = "--nnodes 2 or more on the same command line"
        if unused := [name for name in NODE_FLAGS[1:] if name in flags]:
            raise Refusal([_fault(name, flags[name], expected) for name in unused])
        return None
    faults = []

    def number(name: str, low: int, high: int) -> int:
        text = values.get(name, "")
        if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) and low <= int(text) <= high:
            return int(text)
        faults.append(_fault(name, text, f"a number from {low} to {high}"))
        return low

    count = number("nnodes", 2, 999_999)
    rank = number("node_rank", 0, count - 1)
    endpoint = values.get("rdzv_endpoint", "")
    host, port = _endpoint(endpoint)
    if not host or not 0 < port < 2**16:
        faults.append(_fault("rdzv_endpoint", endpoint, "HOST:PORT of node 0"))
    rendezvous_id = values.get("rdzv_id", "")
    if not NAME.fullmatch(rendezvous_id):
        expected = "the same name on all nodes, of letters, digits and . _ : -"
        faults.append(_fault("rdzv_id", rendezvous_id, expected))
    if faults:
        raise Refusal(faults)
    address = _own_address(host, port)
    return NodePlace(
        count=count,
        rank=rank,
        host=host,
        port=port,
        rendezvous_id=rendezvous_id,
        address=address,
        interface=_interface(address),
    )


def _slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a step that srun started with one task on each node; nothing for any other command.

    The job's own number of nodes does not count: a command in the script of a job of several nodes runs once, on its
    first node.
    """
    count = environment.get("SLURM_STEP_NUM_NODES") or "1"
    if count == "1" or "SLURM_NODEID" not in environment or "SLURM_JOB_ID" not in environment:
        return {}
    job, step, restarts = (environment.get(f"SLURM_{name}", "0") for name in ("JOB_ID", "STEP_ID", "RESTART_COUNT"))
    first = environment.get("EXPLICIT_RDZV_ENDPOINT") or _first_host(environment.get("SLURM_STEP_NODELIST", ""))
    return {
        "nnodes": count,
        "node_rank": environment["SLURM_NODEID"],
        "rdzv_endpoint": first if ":" in first else f"{first}:{DEFAULT_PORT}",
        "rdzv_id": f"{job}.{step}.{restarts}",
    }


def _first_host(names: str) -> str:
    """Return the first of a list such as ``gpu[03-06]``, which scontrol writes out."""
    if "[" not in names:
        return names.partition(",")[0]
    try:
        command = ["scontrol", "show", "hostnames", names]
        done = subprocess.run(  # noqa: S603 - no shell
            command, env=child_environment(), capture_output=True, encoding="utf-8", check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.split()[0] if done.stdout.split() else ""


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) else 0


def _own_address(host: str, port: int) -> str:
    """Return the address from which this machine would send to another; nothing is sent.

    Raises:
        Refusal: If there is no way to the other.
    """
    problem = "no address"
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    except OSError as error:
        problem = error.strerror or str(error)
    except UnicodeError as error:  # not a host name by the rules of IDNA
        problem = str(error)
    expected = "an address of node 0 that this machine can reach"
    raise Refusal(_fault("rdzv_endpoint", host, expected, f": {problem}"))


def _interface(address: str) -> str:
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return str(name)
    raise Refusal(_fault("rdzv_endpoint", address, "an address of this machine", ", which no network interface has"))


def _fault(flag: str, value: str, expected: str, problem: str = "") -> Fault:
    found = (found_text(value) if value else "nothing") + problem
    return CONTEXT.fault(pointer=f"--{flag.replace('_', '-')}", found=found, expected=expected)
