"""A node's place among several: from flags, from SLURM's variables, or refused with all that is wrong."""

from __future__ import annotations

import argparse
import socket
from typing import TYPE_CHECKING

import pytest

from explicit_learning.cli.node_flags import add_node_arguments, given_node_flags
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.launch.multi_node.nodes import NodePlace, find_node_place, inherited_node_place

if TYPE_CHECKING:
    from pathlib import Path

ENDPOINT = ["--rdzv-endpoint", "127.0.0.1:29400"]


def parsed(*words: str) -> dict[str, str]:
    parser = argparse.ArgumentParser()
    add_node_arguments(parser)
    return given_node_flags(parser.parse_args(words))


def pointers(*words: str, **environment: str) -> list[str | None]:
    with pytest.raises(Refusal) as refused:
        find_node_place(parsed(*words), environment)
    assert {fault.exit_code for fault in refused.value.faults} == {ExitCode.USAGE}
    return [fault.pointer for fault in refused.value.faults]


def test_one_machine_is_the_rule() -> None:
    assert find_node_place(parsed(), {}) is None
    assert find_node_place(parsed("--nnodes", "1"), {}) is None
    step = {"SLURM_STEP_NUM_NODES": "4", "SLURM_NODEID": "0", "SLURM_JOB_ID": "7"}
    assert find_node_place(parsed("--nnodes", "1"), step) is None
    assert find_node_place(parsed(), step | {"SLURM_STEP_NUM_NODES": "1"}) is None
    script_of_a_job = {"SLURM_NNODES": "4", "SLURM_NODEID": "0", "SLURM_JOB_ID": "7"}
    assert find_node_place(parsed(), script_of_a_job) is None


def test_flags_name_the_place_and_the_launcher_inherits_it() -> None:
    words = ["--nnodes", "2", "--node-rank", "1", *ENDPOINT, "--rdzv-id", "night"]
    nodes = find_node_place(parsed(*words), {})
    assert nodes == NodePlace(
        count=2, rank=1, host="127.0.0.1", port=29400, rendezvous_id="night", address="127.0.0.1", interface="lo"
    )
    assert nodes is not None
    assert inherited_node_place(nodes.variables()) == nodes
    assert inherited_node_place({}) is None


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_ipv6_endpoint_stands_in_brackets() -> None:
    nodes = find_node_place(
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
def test_a_wrong_value_is_refused_by_its_flag(words: list[str], pointer: str) -> None:
    sound = {"--nnodes": "2", "--node-rank": "0", "--rdzv-endpoint": "127.0.0.1:29400", "--rdzv-id": "x"}
    given = sound | {words[0]: words[1]}
    assert pointer in pointers(*[f"{flag}={value}" for flag, value in given.items()])


def test_slurm_names_the_place_for_a_step_of_several_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    nodes = find_node_place(parsed(), slurm)
    assert nodes is not None
    assert (nodes.count, nodes.rank, nodes.host, nodes.port) == (2, 1, "127.0.0.1", 29400)
    assert nodes.rendezvous_id == "17.0.2", "a job that was queued again is a launch of its own"
    elsewhere = find_node_place(parsed(), slurm | {"EXPLICIT_RDZV_ENDPOINT": "127.0.0.1:500"})
    assert elsewhere is not None
    assert elsewhere.port == 500
    assert pointers(**(slurm | {"SLURM_STEP_NODELIST": "gpu[9]"})) == ["--rdzv-endpoint"]
