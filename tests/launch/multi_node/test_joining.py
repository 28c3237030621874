"""Nodes that cannot join: each ends soon, with a documented exit code and the reason, and without a traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import ASSETS, ROOT
from explicit_learning.freeze.draft_data import write_digits
from explicit_learning.rundir.run_manifest import read_run_manifest
from tests.support.plans import write_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

SECONDS = 120
ANSWER_SECONDS = 30  # as in launch.multi_node.store, which imports torch
# A launcher looks for a stop signal several times a second; the rest is a busy machine.
SOON = 20


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_digits(folder / "data", seed=0, size="quick")
    changes = {
        "initial_adapter": {"path": str(ASSETS / "tiny-vlm" / "sft-adapter")},
        "optimisation": {"max_steps": 4, "save_interval": 2, "per_device_batch_size": 8},
        "lora": {"rank": 16, "alpha": 32},
        "hardware": {"world_size": 6},
    }
    return write_plan(folder / "plan.json", "answer_grpo", folder / "data", changes)


@pytest.fixture
def port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return int(free.getsockname()[1])


class Started:
    """One node's command and what it prints."""

    def __init__(self, log: Path, plan: Path, run: Path, nodes: list[str]) -> None:
        self.log = log
        command = [sys.executable, ROOT / "entrypoint.py", "run", plan, "--out", run, *nodes]
        with log.open("w") as stream:
            self.process = subprocess.Popen(command, stdout=stream, stderr=stream, env=os.environ)

    def printed(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + SECONDS
        while text not in self.printed():
            assert self.process.poll() is None, self.printed()
            assert time.monotonic() < end, self.printed()
            time.sleep(0.1)

    def code(self, seconds: float = SECONDS) -> int:
        code = self.process.wait(seconds)
        assert "Traceback" not in self.printed(), self.printed()
        assert "Exception raised" not in self.printed(), self.printed()
        return code


@pytest.fixture
def start(plan: Path, tmp_path: Path, port: int) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def node(rank: int, *, nnodes: int = 3, out: Path = tmp_path / "run") -> Started:
        log = tmp_path / f"{len(started)}.log"
        nodes = ["--nnodes", str(nnodes), "--node-rank", str(rank), "--rdzv-id", "joining"]
        nodes += ["--rdzv-endpoint", f"127.0.0.1:{port}"]
        started.append(Started(log, plan, out, nodes))
        return started[-1]

    yield node
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()


def test_a_port_in_use_is_named(start: Callable[..., Started], port: int) -> None:
    with closing(socket.create_server(("", port))):
        first = start(0)
        assert first.code() == ExitCode.INTERNAL
    assert f"cannot listen at 127.0.0.1:{port}" in first.printed()
    assert "--rdzv-endpoint" in first.printed()


def test_a_signal_ends_the_wait_for_node_0(start: Callable[..., Started]) -> None:
    second = start(1)
    second.wait_for("connecting to node 0")
    second.process.send_signal(signal.SIGTERM)
    assert second.code(SOON) == ExitCode.STOPPED


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_signal_to_a_waiting_node_stops_all_that_wait(
    start: Callable[..., Started], tmp_path: Path, stopped: int
) -> None:
    nodes = [start(0), start(1)]
    nodes[0].wait_for("waiting for the others")
    nodes[1].wait_for("connecting to node 0")
    time.sleep(1)
    nodes[stopped].process.send_signal(signal.SIGTERM)
    assert [node.code(SOON) for node in nodes] == [ExitCode.STOPPED, ExitCode.STOPPED]
    assert read_run_manifest(tmp_path / "run").status == "stopped"
    again = start(0)
    again.wait_for("starting run")
    again.wait_for("waiting for the others")
    again.process.send_signal(signal.SIGUSR1)
    assert again.code(SOON) == ExitCode.STOPPED


def test_a_node_0_that_answers_no_longer(start: Callable[..., Started]) -> None:
    """As after a power cut: torch would wait for a quarter of an hour, and handle no signal."""
    nodes = [start(0), start(1)]
    nodes[0].wait_for("waiting for the others")
    nodes[1].wait_for("connecting to node 0")
    time.sleep(2)
    nodes[0].process.send_signal(signal.SIGSTOP)
    time.sleep(1)
    nodes[1].process.send_signal(signal.SIGTERM)
    assert nodes[1].code(ANSWER_SECONDS + SOON) == ExitCode.STOPPED
    assert "node 0 is gone (no answer from 127.0.0.1" in nodes[1].printed()


def test_a_node_that_was_started_with_another_nnodes(start: Callable[..., Started]) -> None:
    nodes = [start(0, nnodes=2), start(1, nnodes=3)]
    assert [node.code() for node in nodes] == [ExitCode.INTERNAL, ExitCode.INTERNAL]
    for node in nodes:
        assert "node 1 was started with --nnodes 3, node 0 with --nnodes 2" in node.printed()


@pytest.mark.parametrize("refused", [0, 1])
def test_a_node_that_is_refused_ends_all_with_its_code(
    start: Callable[..., Started], tmp_path: Path, refused: int
) -> None:
    obstacle = tmp_path / "obstacle"  # a file where that node's run folder belongs
    obstacle.write_text("")
    first = start(refused, nnodes=2, out=obstacle)
    first.wait_for(f"node {refused} of 2 does not start: telling the others, for up to 60 s")
    second = start(1 - refused, nnodes=2)
    assert [first.code(), second.code()] == [ExitCode.OUTPUT, ExitCode.OUTPUT]
    assert f"node {refused} is refused [" in second.printed()
    assert str(obstacle) in second.printed()


def test_a_node_that_sees_another_run_folder(start: Callable[..., Started], tmp_path: Path) -> None:
    from explicit_learning.launch.multi_node.follower import _sees_run

    first = start(0)
    first.wait_for("waiting for the others")
    sha256 = read_run_manifest(tmp_path / "run").run_manifest_sha256
    assert _sees_run(tmp_path / "run", sha256, lambda: True)
    assert not _sees_run(tmp_path / "elsewhere", sha256, lambda: True)
    assert not _sees_run(tmp_path / "run", "0" * 64, lambda: True)


def test_a_node_that_is_started_twice(start: Callable[..., Started]) -> None:
    nodes = [start(0), start(1)]
    nodes[1].wait_for("connecting to node 0")
    time.sleep(2)
    twin = start(1)
    assert twin.code() == ExitCode.USAGE
    assert "another node 1 has joined already" in twin.printed()
    nodes[0].process.send_signal(signal.SIGTERM)
    assert [node.code(SOON) for node in nodes] == [ExitCode.STOPPED, ExitCode.STOPPED]
