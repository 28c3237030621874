"""One rank of runs, one after another: ``rank.py WORLD PLAN RUN [PLAN RUN…]``, with torch's usual variables.

Each run leaves what its ranks have to agree on. Model, adapter and trainer are made anew for each; only the process
group stays, which no run begins with in another state.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def main(world: Path, *places: Path) -> None:
    """Train, and leave outcomes and metrics."""
    import torch

    from explicit_learning.files.typed_json import from_json, to_json
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.training import backend
    from explicit_learning.training.objectives.evi_po_trainer import EviPoTrainer
    from explicit_learning.training.state.checkpointing import DurableTrainer
    from tests.support.objective_world import World, context

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    logged: list[dict[str, Any]] = []

    def noting(self: Any, logs: dict[str, float], *args: Any) -> None:
        logged.append({name: values[:] for name, values in self._metrics["train"].items()})
        super(DurableTrainer, self).log(logs, *args)

    groups: list[int] = []
    score = EviPoTrainer._score

    def counting(self: Any, model: Any, carried: list[Any], **options: Any) -> Any:
        groups.append(len(carried))
        return score(self, model, carried, **options)

    DurableTrainer.log = noting  # type: ignore[method-assign] # to count what the real one is given
    EviPoTrainer._score = counting  # type: ignore[method-assign] # same
    for plan, run in zip(places[::2], places[1::2], strict=True):
        logged.clear()
        groups.clear()
        place = context(World(folder=world), from_json(Plan, json.loads(plan.read_text())), run, rank=rank)
        outcome = backend.run(place)
        left = {"status": outcome.status, "step": outcome.optimizer_step, "report": to_json(outcome.report)}
        left |= {"logged": logged, "groups_per_pass": groups}
        (run / f"rank-{rank}.json").write_text(json.dumps(left))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
