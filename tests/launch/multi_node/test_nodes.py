"""Which nodes a run is spread over: from flags, from SLURM's variables, or refused with all that is wrong."""

from __future__ import annotations

import argparse
import socket
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.launch.multi_node.nodes import Nodes, add_node_arguments, handed_over, named_nodes, node_flags

if TYPE_CHECKING:
    from pathlib import Path

ENDPOINT = ["--rdzv-endpoint", "127.0.0.1:29400"]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_node_arguments(parser)
    return parser.parse_args(words)


def pointers(*words: str, **environment: str) -> list[str | None]:
    with pytest.raises(Refusal) as refused:
        named_nodes(parsed(*words), environment)
    assert {fault.exit_code for fault in refused.value.faults} == {ExitCode.USAGE}
    return [fault.pointer for fault in refused.value.faults]


def test_one_machine_is_the_rule() -> None:
    assert named_nodes(parsed(), {}) is None
    assert named_nodes(parsed("--nnodes", "1"), {}) is None
    step = {"SLURM_STEP_NUM_NODES": "4", "SLURM_NODEID": "0", "SLURM_JOB_ID": "7"}
    assert named_nodes(parsed("--nnodes", "1"), step) is None
    assert named_nodes(parsed(), step | {"SLURM_STEP_NUM_NODES": "1"}) is None
    script_of_a_job = {"SLURM_NNODES": "4", "SLURM_NODEID": "0", "SLURM_JOB_ID": "7"}
    assert named_nodes(parsed(), script_of_a_job) is None


def test_flags_say_it_all_and_are_handed_over() -> None:
    words = ["--nnodes", "2", "--node-rank", "1", *ENDPOINT, "--rdzv-id", "night"]
    nodes = named_nodes(parsed(*words), {})
    assert nodes == Nodes(
        count=2, rank=1, host="127.0.0.1", port=29400, meeting="night", address="127.0.0.1", interface="lo"
    )
    assert nodes is not None
    assert handed_over(nodes.variables()) == nodes
    assert handed_over({}) is None
    assert node_flags(parsed(*words)) == words


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine speaks no IPv6")
def test_an_ipv6_endpoint_stands_in_brackets() -> None:
    nodes = named_nodes(
        parsed("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "[::1]:400", "--rdzv-id", "x"), {}
    )
    assert nodes is not None
    assert (nodes.host, nodes.port, nodes.interface) == ("::1", 400, "lo")


def test_everything_that_is_missing_is_named_at_once() -> None:
    assert pointers("--nnodes", "2") == ["--node-rank", "--rdzv-endpoint", "--rdzv-id"]
    assert pointers("--node-rank", "1", *ENDPOINT) == ["--node-rank", "--rdzv-endpoint"]


@pytest.mark.parametrize(
    ("words", "pointer"),
    [
        (["--nnodes", "0"], "--nnodes"),
        (["--nnodes", "two"], "--nnodes"),
        (["--nnodes", "٢"], "--nnodes"),
        (["--node-rank", "2"], "--node-rank"),
        (["--node-rank", "-1"], "--node-rank"),
        (["--rdzv-endpoint", "127.0.0.1"], "--rdzv-endpoint"),
        (["--rdzv-endpoint", "127.0.0.1:0"], "--rdzv-endpoint"),
        (["--rdzv-endpoint", "127.0.0.1:65536"], "--rdzv-endpoint"),
        (["--rdzv-endpoint", "no.such.host.invalid:29400"], "--rdzv-endpoint"),
        (["--rdzv-endpoint", "node..cluster:29400"], "--rdzv-endpoint"),
        (["--rdzv-endpoint", f"{'n' * 64}:29400"], "--rdzv-endpoint"),
        (["--rdzv-endpoint", "http://node:29400"], "--rdzv-endpoint"),
        (["--rdzv-id", "a name"], "--rdzv-id"),
    ],
)
def test_what_is_no_place_among_nodes_is_refused(words: list[str], pointer: str) -> None:
    sound = {"--nnodes": "2", "--node-rank": "0", "--rdzv-endpoint": "127.0.0.1:29400", "--rdzv-id": "x"}
    given = sound | {words[0]: words[1]}
    assert pointer in pointers(*[f"{flag}={value}" for flag, value in given.items()])


def test_slurm_says_it_for_a_step_of_several_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scontrol").write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames gpu[3-4]" ] && printf "127.0.0.1\\ngpu4\\n"\n'
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    slurm = {
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_ID": "0",
        "SLURM_RESTART_COUNT": "2",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "gpu[3-4]",
    }
    nodes = named_nodes(parsed(), slurm)
    assert nodes is not None
    assert (nodes.count, nodes.rank, nodes.host, nodes.port) == (2, 1, "127.0.0.1", 29400)
    assert nodes.meeting == "17.0.2", "a job that was queued again meets anew"
    elsewhere = named_nodes(parsed(), slurm | {"EXPLICIT_RDZV_ENDPOINT": "127.0.0.1:500"})
    assert elsewhere is not None
    assert elsewhere.port == 500
    assert pointers(**(slurm | {"SLURM_STEP_NODELIST": "gpu[9]"})) == ["--rdzv-endpoint"]
