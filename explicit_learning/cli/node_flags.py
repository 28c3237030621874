"""The flags of a run over several nodes, named as torchrun names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.launch.multi_node.nodes import NODE_FLAGS

if TYPE_CHECKING:
    import argparse

__all__ = ["add_node_arguments", "given_node_flags"]


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group(
        "several nodes", "the same command on each; read from SLURM's variables otherwise"
    )
    group.add_argument("--nnodes", metavar="N", help="how many nodes share the plan's ranks (default 1)")
    group.add_argument("--node-rank", metavar="R", help="which of them this is, from 0; node 0 holds the run")
    group.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="where node 0 can be reached")
    group.add_argument("--rdzv-id", metavar="NAME", help="a name for this launch, the same on all nodes")


def given_node_flags(args: argparse.Namespace) -> dict[str, str]:
    """Return the flags that were given, by name."""
    return {name: value for name in NODE_FLAGS if (value := getattr(args, name)) is not None}
