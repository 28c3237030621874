"""Which machines a run is spread over, from flags or from SLURM's variables.

Every node starts the same command. Node 0 holds the run; the others bring their gates' findings and their ranks. All
share the run directory (a parallel file system, as clusters have), and meet at an address that node 0 listens on.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Fault, Refusal, found_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

__all__ = [
    "NODES_VARIABLE",
    "AskedToStopError",
    "MeetingError",
    "Nodes",
    "add_node_arguments",
    "handed_over",
    "named_nodes",
    "node_flags",
]

NODES_VARIABLE = "EXPLICIT_LAUNCH_NODES"
DEFAULT_PORT = 29400  # torchrun's
FLAGS = ("nnodes", "node_rank", "rdzv_endpoint", "rdzv_id")
NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


class MeetingError(RuntimeError):
    """The other nodes cannot be met, or not any more; its text is for the person who started them."""


class AskedToStopError(MeetingError):
    """Somebody asked this node or another to stop before any rank had started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """One node's place among those of a launch.

    Attributes:
        count: How many there are; at least 2.
        rank: This one, from 0.
        host: Where node 0 listens.
        port: Its port.
        meeting: Name of this launch's meeting, the same on all nodes (torchrun's ``--rdzv-id``).
        address: This node's own address on the way to ``host``: where its ranks can be reached.
        interface: The network interface that has that address.
    """

    count: int
    rank: int
    host: str
    port: int
    meeting: str
    address: str
    interface: str

    def variables(self) -> dict[str, str]:
        """Return the environment variable that hands this over to the launcher (`handed_over`)."""
        return {NODES_VARIABLE: json.dumps(asdict(self))}


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags, named as torchrun names them."""
    group = parser.add_argument_group(
        "several nodes", "the same command on each; read from SLURM's variables otherwise"
    )
    group.add_argument("--nnodes", metavar="N", help="how many nodes share the plan's ranks (default 1)")
    group.add_argument("--node-rank", metavar="R", help="which of them this is, from 0; node 0 holds the run")
    group.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="where node 0 can be reached")
    group.add_argument("--rdzv-id", metavar="NAME", help="a name for this launch, the same on all nodes")


def node_flags(args: argparse.Namespace) -> list[str]:
    """Return the flags as they were given, to be passed on to another command."""
    given = {name: getattr(args, name) for name in FLAGS}
    return [
        part for name, value in given.items() if value is not None for part in (f"--{name.replace('_', '-')}", value)
    ]


def named_nodes(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Nodes | None:
    """Return this node's place; ``None`` for a run on one machine.

    Raises:
        Refusal: With exit code 64, and everything that is missing or wrong.
    """
    given = {name: getattr(args, name) for name in FLAGS}
    values = _slurm(environment) if given["nnodes"] is None else {}
    values |= {name: value for name, value in given.items() if value is not None}
    if values.get("nnodes", "1") == "1":
        unused = [name for name in FLAGS[1:] if given[name] is not None]
        if unused:
            raise Refusal([_fault(name, found_text(given[name]), "--nnodes of 2 or more beside it") for name in unused])
        return None
    faults = []

    def number(name: str, low: int, high: int) -> int:
        text = values.get(name, "")
        if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) and low <= int(text) <= high:
            return int(text)
        faults.append(_fault(name, found_text(text) if text else "nothing", f"a number from {low} to {high}"))
        return low

    count = number("nnodes", 2, 999_999)
    rank = number("node_rank", 0, count - 1)
    host, port = _endpoint(values.get("rdzv_endpoint", ""))
    if not host or not 0 < port < 2**16:
        faults.append(_fault("rdzv_endpoint", found_text(values.get("rdzv_endpoint")), "HOST:PORT of node 0"))
    meeting = values.get("rdzv_id", "")
    if not NAME.fullmatch(meeting):
        faults.append(_fault("rdzv_id", found_text(meeting), "a name of letters, digits and . _ : - on all nodes"))
    if faults:
        raise Refusal(faults)
    address = _own_address(host, port)
    return Nodes(
        count=count,
        rank=rank,
        host=host,
        port=port,
        meeting=meeting,
        address=address,
        interface=_interface(address),
    )


def handed_over(environment: Mapping[str, str]) -> Nodes | None:
    """Return the node's place as the light process left it for the launcher; ``None`` for a run on one machine."""
    text = environment.get(NODES_VARIABLE)
    return Nodes(**json.loads(text)) if text else None


def _slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what srun says of a step with one task a node; nothing where it says nothing of several nodes.

    The job's own count is not asked: a command in the script of a job of several nodes runs once, on its first.
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
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)  # noqa: S603 - no shell
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.split()[0] if done.stdout.split() else ""


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) else 0


def _own_address(host: str, port: int) -> str:
    """Return the address that this machine would speak to another from; nothing is sent.

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
    except UnicodeError as error:  # what IDNA makes no name of
        problem = str(error)
    raise Refusal(_fault("rdzv_endpoint", f"{host}: {problem}", "an address of node 0 that this machine can reach"))


def _interface(address: str) -> str:
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return str(name)
    raise Refusal(_fault("rdzv_endpoint", f"{address} is on no interface", "an address of this machine"))


def _fault(name: str, found: str, expected: str) -> Fault:
    flag = f"--{name.replace('_', '-')}"
    fix = "start the same command on every node with --nnodes, --node-rank, --rdzv-endpoint and --rdzv-id"
    return Fault(gate="nodes", pointer=flag, found=found, expected=expected, fix=fix, exit_code=ExitCode.USAGE)
