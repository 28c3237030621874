"""Two real launchers with a rank each: whatever ends on one, both end within a minute, with one code and its cause."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ROOT
from explicit_learning.launch.environment import rank_environment
from explicit_learning.launch.multi_node.nodes import NodePlace
from explicit_learning.launch.signals import blocked_stop_signals
from explicit_learning.launch.start import launch_environment
from explicit_learning.rundir.launch_manifest import FollowerManifest
from explicit_learning.rundir.run_lock import hold_run
from tests.launch.conftest import CASE_VARIABLES, ends_within
from tests.support.finished_run import Run, plan_document
from tests.support.machines import COMMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from explicit_learning.rundir.launch_manifest import LaunchManifest

pytestmark = pytest.mark.slow

START_SECONDS = 120.0
# What the design allows, from the failure to the end of all launchers.
MINUTE = 60.0
# Ranks that may still say why they end have half a minute; this is much less.
AT_ONCE = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The launchers of two nodes."""

    run: Path
    processes: tuple[subprocess.Popen[bytes], ...]

    def printed(self, rank: int) -> str:
        return (self.run / f"console-{rank}.txt").read_text()

    def when_ready(self, *ranks: int) -> list[int]:
        """Return the process ids of ranks once they are where their case waits."""
        end = time.monotonic() + START_SECONDS
        paths = [self.run / f"ready-{rank}" for rank in ranks]
        while not all(path.exists() for path in paths):
            assert time.monotonic() < end, self.printed(0) + self.printed(1)
            time.sleep(0.05)
        return [int(path.read_text()) for path in paths]

    def codes(self, since: float) -> list[int]:
        """Wait for both to end, within a minute of a time."""
        return [process.wait(max(1.0, since + MINUTE - time.monotonic())) for process in self.processes]

    def outcomes(self) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = json.loads((self.run / "finished.json").read_text())
        return result


def _place(rank: int, port: int) -> NodePlace:
    return NodePlace(
        count=2, rank=rank, host="127.0.0.1", port=port, rendezvous_id="x", address="127.0.0.1", interface="lo"
    )


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Nodes]]:
    """Return a function that starts two launchers whose ranks run a case of `tests.support.rank_cases`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started: list[subprocess.Popen[bytes]] = []

    def start(case: str, **variables: str) -> Nodes:
        prepared = Run.of(tmp_path / f"run-{len(started)}", plan_document())
        prepared.prepare(record=False)
        leading = prepared.launch_manifest()
        following = FollowerManifest(
            plan=leading.plan,
            run_folder=leading.run_folder,
            paths=leading.paths,
            running_commit=COMMIT,
            machine=leading.machine,
        )
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = int(free.getsockname()[1])
        own = dict(os.environ) | {"CASE": case, "PYTHONPATH": str(ROOT)} | variables
        environment = rank_environment(leading.plan, own, interface="lo")
        case_variables = {name: value for name, value in own.items() if name in CASE_VARIABLES}
        with hold_run(leading.run) as lock, blocked_stop_signals():
            for rank in (0, 1):
                manifest: LaunchManifest | FollowerManifest = following if rank else leading
                held = None if rank else lock
                place = _place(rank, port)
                with (leading.run / f"console-{rank}.txt").open("wb") as console:
                    process = subprocess.Popen(
                        [sys.executable, "-m", "tests.support.launcher_of_ranks"],
                        env=launch_environment(manifest, environment, lock=held, node=place) | case_variables,
                        stdin=subprocess.DEVNULL,
                        stdout=console,
                        stderr=console,
                        pass_fds=() if held is None else (held.descriptor,),
                        process_group=0,
                    )
                started.append(process)
        return Nodes(run=leading.run, processes=tuple(started[-2:]))

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_rank_that_fails_before_they_meet_ends_both_nodes_with_its_code(launched: Callable[..., Nodes]) -> None:
    both = [
        launched("one_raises_before_they_meet", FAILS=str(fails)) for fails in (0, 1)
    ]  # each waits for half a minute
    waiting = [nodes.when_ready(1 - fails)[0] for fails, nodes in enumerate(both)]
    now = time.monotonic()
    for fails, nodes in enumerate(both):
        waits = 1 - fails
        assert nodes.codes(now) == [74, 74], nodes.printed(0) + nodes.printed(1)
        outcomes = nodes.outcomes()
        assert outcomes[fails]["message"].startswith("disk full: [Errno 28] No space left on device: 'model.safetens")
        assert outcomes[waits]["message"] == f"could not continue without rank {fails}"
        assert outcomes[waits]["exit_code"] == 74
        assert f"node {fails}: a rank failed: ending the ranks of this node" in nodes.printed(waits)
        assert "disk full: [Errno 28]" in nodes.printed(0), "node 0 explains"
        assert ends_within(waiting[fails], 1)


def test_a_rank_that_fails_in_a_collective_ends_both_nodes_with_its_code(launched: Callable[..., Nodes]) -> None:
    nodes = launched("one_raises")
    started = time.monotonic()
    assert nodes.codes(started + START_SECONDS) == [74, 74], nodes.printed(0) + nodes.printed(1)
    outcomes = nodes.outcomes()
    assert outcomes[1]["message"].startswith("disk full: [Errno 28] No space left on device: 'checkpoint-5'")
    assert outcomes[0]["message"] == "could not continue without rank 1"


def test_a_lost_launcher_ends_the_other_before_they_meet(launched: Callable[..., Nodes]) -> None:
    """Killed, or as after a power cut: no connection is closed, and nothing answers."""
    ends = ((1, signal.SIGKILL), (0, signal.SIGKILL), (0, signal.SIGSTOP))
    launches = [launched("one_never_connects") for _ in ends]
    ranks = [nodes.when_ready(0, 1) for nodes in launches]
    for (victim, number), nodes in zip(ends, launches, strict=True):
        nodes.processes[victim].send_signal(number)
    lost = time.monotonic()
    for (victim, _), nodes, pids in zip(ends, launches, ranks, strict=True):
        survivor = 1 - victim
        assert nodes.processes[survivor].wait(max(1.0, lost + MINUTE - time.monotonic())) == 70
        assert ends_within(pids[survivor], 1)
        if victim == 0:
            assert "node 0 is gone" in nodes.printed(1)
            continue
        assert "node 1 is lost: no sign of life for 30 s: ending the ranks of this node" in nodes.printed(0)
        messages = [outcome["message"] for outcome in nodes.outcomes()]
        assert messages[0] == "could not continue without rank 1"
        assert messages[1].startswith("the launcher of this rank's node ended and sent no report")


def test_a_second_signal_to_one_node_stops_both_at_the_checkpoint(launched: Callable[..., Nodes]) -> None:
    nodes = launched("never_stops", CHECKPOINT="1")
    nodes.when_ready(0, 1)
    nodes.processes[1].send_signal(signal.SIGINT)
    time.sleep(2.5)
    nodes.processes[1].send_signal(signal.SIGTERM)
    second = time.monotonic()
    assert nodes.codes(second) == [75, 75], nodes.printed(0) + nodes.printed(1)
    assert time.monotonic() - second < AT_ONCE
    for outcome in nodes.outcomes():
        assert (outcome["status"], outcome["checkpoint"]) == ("stopped", "checkpoint-5")
        assert "a second signal (SIGTERM) came" in outcome["message"]
