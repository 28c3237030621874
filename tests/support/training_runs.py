"""Ranks that run real plans in processes of their own, and what they leave."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.reading import read_slot_rows
from explicit_learning.files.resources import ROOT
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.checkpoint_mark import read_mark
from explicit_learning.rundir.checkpoints import complete_checkpoints
from explicit_learning.rundir.events import read_events
from explicit_learning.verify.accounting.recomputing import AccountingAnswer, accounting_faults
from tests.support.preloaded import SERVER_ENVIRONMENT, is_fresh, start

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a launch ended: each rank's outcome and what it printed."""

    outcomes: tuple[dict[str, Any], ...]
    output: tuple[str, ...]

    @property
    def status(self) -> str:
        """The one status of all ranks."""
        [status] = {outcome["status"] for outcome in self.outcomes}
        return str(status)


def launch_ranks(plan: Path, run: Path, **options: str | int) -> Ended:
    """Run a plan's ranks to their end, each in a process of its own, and return their outcomes.

    Args:
        plan: The frozen plan.
        run: The run directory.
        options: ``resume`` (a checkpoint's name), ``stop_after`` (steps of this launch after which rank 0 gets a stop
            request).
    """
    world_size = json.loads(plan.read_text())["hardware"]["world_size"]
    port = _free_port()
    run.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank in range(world_size):
        environment = {
            **os.environ,
            **SERVER_ENVIRONMENT,
            **({"PYTHONHASHSEED": str(rank)} if is_fresh() else {}),
            "PYTHONPATH": str(ROOT),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        arguments = [str(plan), str(run), json.dumps(options)]
        processes.append(
            start(
                # As a module: of a script, this folder would be on the path, and shadow libraries.
                ["-m", "tests.support.rank_process", *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    output = tuple(process.communicate(timeout=SECONDS)[0] for process in processes)
    outcomes = tuple(json.loads((run / f"outcome-{rank}.json").read_text()) for rank in range(world_size))
    expected = [outcome["exit_code"] or 70 if outcome["status"] == "failed" else 0 for outcome in outcomes]
    assert [process.returncode for process in processes] == expected, "\n".join(output)
    return Ended(outcomes=outcomes, output=output)


def verified(plan_file: Path, run: Path) -> AccountingAnswer:
    """Return what computing the accounting of a run without a launcher again finds; it has no marker."""
    plan = from_json(Plan, json.loads(plan_file.read_text()))
    return accounting_faults(
        tree=FolderTree(run),
        plan=plan,
        marker=None,
        marks={name: read_mark(run / name) for name in complete_checkpoints(run)},
        boundary=None,
        launches=(),
        events=read_events(FolderTree(run), "set-aside")[0],
        slots=read_slot_rows(plan_file.parent / plan.data.dataset.path),
        model=plan_file.parent / plan.model.path,
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def traces(run: Path, rank: int = 0) -> list[dict[str, Any]]:
    """Return a rank's trace rows, without the header line."""
    path = run / "accounting" / f"rank-{rank}" / "trace.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return a run's metrics rows."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def records(run: Path) -> dict[str, bytes]:
    """Return everything that must not depend on an interruption, by relative path."""
    names = [
        "metrics.jsonl",
        *(f"final-adapter/{name}" for name in ("adapter_model.safetensors", "adapter_config.json")),
    ]
    names += [str(path.relative_to(run)) for path in sorted(run.glob("accounting/rank-*/*.jsonl"))]
    return {name: (run / name).read_bytes() for name in names}
