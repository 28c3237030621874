"""Two nodes with a rank each: they pass the smoke plan; if one launcher dies, the other ends, and both can continue."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ASSETS
from explicit_learning.freeze.draft_data import write_digits
from tests.support.namespaces import Node, lost_packets, two_nodes
from tests.support.plans import write_plan

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.nodes

# Imports, gates and steps on two busy cores.
SECONDS = 400


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node]]:
    with two_nodes() as both:
        yield both


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a world")
    write_digits(folder / "data", seed=0, size="quick")
    return folder


def _plan(world: Path, steps: int) -> Path:
    path = world / f"{steps}.json"
    changes = {
        "initial_adapter": {"path": str(ASSETS / "tiny-vlm" / "sft-adapter")},
        "optimisation": {"max_steps": steps, "save_interval": 2, "per_device_batch_size": 8},
        "lora": {"rank": 16, "alpha": 32},
        "hardware": {"world_size": 2},
    }
    return path if path.exists() else write_plan(path, "answer_grpo", world / "data", changes)


class Pair:
    """The same command on both nodes, and what each printed."""

    def __init__(self, nodes: tuple[Node, Node], folder: Path, *arguments: str | Path, launch: str) -> None:
        self.logs = [folder / f"{launch}-node-{node.rank}.log" for node in nodes]
        self.processes: list[subprocess.Popen[str]] = [
            node.el(log, *arguments, launch=launch) for node, log in zip(nodes, self.logs, strict=True)
        ]

    def printed(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in self.logs)

    def codes(self) -> list[int]:
        """Wait for both to end."""
        end = time.monotonic() + SECONDS
        return [process.wait(max(1.0, end - time.monotonic())) for process in self.processes]

    def wait_for(self, path: Path) -> None:
        end = time.monotonic() + SECONDS
        while not path.exists():
            assert all(process.poll() is None for process in self.processes), self.printed()
            assert time.monotonic() < end, self.printed()
            time.sleep(0.05)

    def launcher(self, rank: int) -> int:
        """Return the process id of a node's launcher: `ip netns exec` becomes the program, and that the launcher."""
        pid = self.processes[rank].pid
        assert b"explicit_learning.launch" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return pid


def _status(run: Path) -> str:
    status: str = json.loads((run / "run-manifest.json").read_text())["status"]
    return status


def _events(run: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def test_the_smoke_plan_passes(nodes: tuple[Node, Node], world: Path, tmp_path: Path) -> None:
    run = tmp_path / "smoke"
    pair = Pair(nodes, tmp_path, "smoke", _plan(world, 8), "--out", run, launch="smoke")
    assert pair.codes() == [0, 0], pair.printed()
    [audit] = [json.loads(path.read_text()) for path in (run / "resume-audits").glob("*.json")]
    assert audit["passed"] is True
    assert [rank["rank"] for rank in audit["ranks"]] == [0, 1]
    records = [json.loads(path.read_text()) for path in run.glob("launches/*.json") if ".end" not in path.name]
    assert sorted(record["step"] for record in records) == [0, 5], "each phase is a launch"
    first, second = records[0]["nodes"]
    assert first["platform"]["hardware"]["cpu"] == second["platform"]["hardware"]["cpu"]
    assert first["code"] == second["code"]
    assert json.loads((run / "smoke-output-comparison.json").read_text())["equal"] is True
    assert not (run / "uninterrupted").exists()


@pytest.mark.parametrize("victim", [1, 0])
def test_a_killed_launcher_ends_both_and_the_same_command_continues(
    nodes: tuple[Node, Node], world: Path, tmp_path: Path, victim: int
) -> None:
    run = tmp_path / "run"
    command = ("run", _plan(world, 12), "--out", run)
    pair = Pair(nodes, tmp_path, *command, launch=f"killed-{victim}")
    pair.wait_for(run / "checkpoint-2" / "complete.json")
    os.kill(pair.launcher(victim), signal.SIGKILL)
    killed = time.monotonic()
    codes = pair.codes()
    assert time.monotonic() - killed < 60
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] == 70, pair.printed()
    assert "Traceback" not in pair.printed()
    if victim == 1:
        assert "node 1 is lost" in pair.logs[0].read_text()
        assert _status(run) == "failed"
    else:
        assert "node 0 is gone" in pair.logs[1].read_text()

    again = Pair(nodes, tmp_path, *command, launch=f"again-{victim}")
    assert again.codes() == [0, 0], again.printed()
    assert _status(run) == "completed"
    assert _events(run, "launch")[-1]["data"]["action"] == "resume"


def test_a_lost_connection_ends_both_within_a_minute(nodes: tuple[Node, Node], world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pair = Pair(nodes, tmp_path, "run", _plan(world, 12), "--out", run, launch="lost")
    pair.wait_for(run / "checkpoint-2" / "complete.json")
    with lost_packets(nodes):
        lost = time.monotonic()
        assert pair.codes() == [70, 70], pair.printed()
        assert time.monotonic() - lost < 60
    assert "node 1 is lost: no sign of life for 30 s: ending the ranks of this node" in pair.logs[0].read_text()
    assert "node 0 is gone (no answer from 198.18.0.1:29400 for 30 s)" in pair.logs[1].read_text()
    assert "Traceback" not in pair.printed()
    assert _status(run) == "failed"


def test_a_signal_to_either_node_stops_both_at_one_checkpoint(
    nodes: tuple[Node, Node], world: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    pair = Pair(nodes, tmp_path, "run", _plan(world, 12), "--out", run, launch="stopped")
    pair.wait_for(run / "checkpoint-2" / "complete.json")
    os.kill(pair.launcher(1), signal.SIGTERM)
    assert pair.codes() == [75, 75], pair.printed()
    assert _status(run) == "stopped"


def test_a_node_with_another_plan_is_refused_and_node_0_learns_why(
    nodes: tuple[Node, Node], world: Path, tmp_path: Path
) -> None:
    logs = [tmp_path / f"{rank}.log" for rank in (0, 1)]
    processes = []
    for rank, steps in ((0, 8), (1, 12)):
        command = ("run", _plan(world, steps), "--out", tmp_path / "run")
        processes.append(nodes[rank].el(logs[rank], *command, launch="other"))
        end = time.monotonic() + SECONDS
        while rank == 0 and "waiting for the others" not in logs[0].read_text():
            assert time.monotonic() < end, logs[0].read_text()
            time.sleep(0.1)
    codes = [process.wait(SECONDS) for process in processes]
    assert codes == [73, 73]
    assert "node 1 of 2 does not start: telling the others" in logs[1].read_text()
    assert "node 1 is refused [" in logs[0].read_text()
