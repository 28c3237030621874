"""One rank in a process of its own: ``python -m tests.support.rank_process PLAN RUN OPTIONS``."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from explicit_learning.files.typed_json import from_json
from explicit_learning.launch.outcomes import outcome_of_error
from explicit_learning.launch.rank import RankContext, end_process
from explicit_learning.launch.signals import StopRequest
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
from explicit_learning.rundir.launch_manifest import LaunchManifest
from explicit_learning.rundir.outcome import write_outcome
from tests.support.machines import MACHINE


class _StopAfter(StopRequest):
    """A stop request that comes during a certain step of this launch: the trainer reads it once a step."""

    __slots__ = ("_left",)

    def __init__(self, steps: int | None) -> None:
        super().__init__()
        self._left = steps

    def requested(self) -> bool:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.note(signal.SIGTERM)
        return super().requested()


def _context(plan_file: Path, run: Path, options: dict[str, Any]) -> RankContext:
    plan = from_json(Plan, json.loads(plan_file.read_text()))
    rank = int(os.environ["RANK"])
    stop = _StopAfter(options["stop_after"] if rank == 0 else None) if options.get("stop_after") else StopRequest()

    def place(name: str) -> str:
        return str((plan_file.parent / name).resolve())

    def say(text: str) -> None:
        print(text, flush=True)

    manifest = LaunchManifest(
        plan=plan,
        run_folder=str(run),
        paths=ResolvedPaths(
            model=place(plan.model.path),
            initial_adapter=place(plan.initial_adapter.path) if plan.initial_adapter else None,
            dataset=place(plan.data.dataset.path),
            asset_root=place(plan.data.asset_root),
            evaluation=place(plan.data.evaluation_manifest.path),
            prompt=place(plan.prompt.path),
            validation=place(plan.validation.slots.path) if plan.validation else None,
        ),
        run_manifest_sha256="0" * 64,
        running_commit="1" * 40,
        launch_id="test",
        resume_checkpoint=options.get("resume"),
        report_to=(),
        stop_at_step=options.get("stop_at_step"),
        machine=MACHINE,
    )
    return RankContext(
        manifest=manifest,
        rank=rank,
        local_rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        stop=stop,
        say=say,
        console=sys.stderr,
    )


def main() -> None:
    """Run the backend and write its outcome into the run directory."""
    plan_file, run, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    context = _context(plan_file, run, options)
    from explicit_learning.training.backend import run as train

    try:
        outcome = train(context)
    except Exception as error:  # noqa: BLE001 - the shell turns every error into an outcome
        outcome = outcome_of_error(error)
    write_outcome(run, context.rank, outcome)
    end_process(outcome)


if __name__ == "__main__":
    main()
