"""One rank of several runs, one after another: ``python -m tests.support.objective_rank WORLD PLAN RUN [PLAN RUN…]``.

Torch's usual variables set which rank. Each run writes what its ranks have to agree on. Model, adapter and trainer are
made again for each run; only the process group stays.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(world: Path, *places: Path) -> None:
    """Train, and write outcomes and metrics."""
    import torch

    from explicit_learning.files.typed_json import from_json, to_json
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.training import backend
    from explicit_learning.training.objectives.evi_po_trainer import EviPoTrainer
    from explicit_learning.training.state.checkpointing import CheckpointingTrainer
    from tests.support.objective_world import ObjectiveWorld, context

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    logged: list[dict[str, Any]] = []

    def logging(self: Any, logs: dict[str, float], *args: Any) -> None:
        logged.append({name: values[:] for name, values in self._metrics["train"].items()})
        super(CheckpointingTrainer, self).log(logs, *args)

    groups: list[int] = []
    score = EviPoTrainer._score

    def counting(self: Any, model: Any, scored: list[Any], **options: Any) -> Any:
        groups.append(len(scored))
        return score(self, model, scored, **options)

    CheckpointingTrainer.log = logging  # type: ignore[method-assign] # to record what the real one is given
    EviPoTrainer._score = counting  # type: ignore[method-assign] # same
    for plan, run in zip(places[::2], places[1::2], strict=True):
        logged.clear()
        groups.clear()
        place = context(ObjectiveWorld(folder=world), from_json(Plan, json.loads(plan.read_text())), run, rank=rank)
        outcome = backend.run(place)
        result = {"status": outcome.status, "step": outcome.optimizer_step, "report": to_json(outcome.report)}
        result |= {"logged": logged, "groups_per_pass": groups}
        (run / f"rank-{rank}.json").write_text(json.dumps(result))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
