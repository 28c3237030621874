"""Ranks as processes of their own."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

from explicit_learning.files.resources import ROOT
from tests.support.preloaded import SERVER_ENVIRONMENT, start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objective_world import ObjectiveWorld


def run_ranks(
    world: ObjectiveWorld, runs: dict[str, Path], *, ranks: int, patience_seconds: float
) -> dict[str, list[Any]]:
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
        **SERVER_ENVIRONMENT,
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    places = [str(part) for name, run in runs.items() for part in (world.folder / f"{name}.json", run)]
    # As a module: of a script, this folder would be on the path, and shadow libraries.
    arguments = ["-m", "tests.support.objective_rank", str(world.folder), *places]
    logs = [next(iter(runs.values())) / f"rank-{rank}.log" for rank in range(ranks)]
    processes = []
    for rank, path in enumerate(logs):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with path.open("w") as log:
            processes.append(start(arguments, env={**os.environ, **shared, **place}, stdout=log, stderr=log))
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
