"""Ranks as processes of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.objective_world import World

SCRIPT = Path(__file__).with_name("objective_rank.py")


def run_ranks(world: World, runs: dict[str, Path], *, ranks: int, patience_seconds: float) -> dict[str, list[Any]]:
    """Train plans of a world one after another on several processes; return what each rank wrote, by plan.

    Args:
        world: The world.
        runs: Each plan's name, and the folder of its run, which is made.
        ranks: Number of processes.
        patience_seconds: Longest time that all of it may take.
    """
    for run in runs.values():
        run.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "MALLOC_MMAP_THRESHOLD_": "4000000000",
        "MALLOC_TRIM_THRESHOLD_": "4000000000",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    places = [str(part) for name, run in runs.items() for part in (world.folder / f"{name}.json", run)]
    command = [sys.executable, str(SCRIPT), str(world.folder), *places]
    logs = [next(iter(runs.values())) / f"rank-{rank}.log" for rank in range(ranks)]
    processes = []
    for rank, path in enumerate(logs):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with path.open("w") as log:
            processes.append(subprocess.Popen(command, env={**os.environ, **shared, **place}, stdout=log, stderr=log))
    try:
        codes = [process.wait(patience_seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * ranks, "\n".join(path.read_text()[-2000:] for path in logs)
    return {
        name: [json.loads((run / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
        for name, run in runs.items()
    }
