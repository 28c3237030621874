"""One rank of a run: ``rank.py WORLD PLAN RUN``, with torch's usual variables. Leaves what ranks have to agree on."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def main(world: Path, plan: Path, run: Path) -> None:
    """Train, and leave outcome and metric keys."""
    import torch
    from objectives.world import World, context

    from explicit_learning.plan.model import Plan, build
    from explicit_learning.training import backend
    from explicit_learning.training.aligned import AlignedGRPOTrainer

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    logged: list[dict[str, Any]] = []
    log = AlignedGRPOTrainer.log

    def noting(self: Any, logs: dict[str, float], *args: Any) -> None:
        logged.append({name: values[:] for name, values in self._metrics["train"].items()})
        log(self, logs, *args)

    AlignedGRPOTrainer.log = noting  # type: ignore[method-assign]
    place = context(World(folder=world), build(Plan, json.loads(plan.read_text())), run, rank=rank)
    outcome = backend.run(place)
    left = {"status": outcome.status, "step": outcome.optimizer_step, "facts": outcome.facts, "logged": logged}
    (run / f"rank-{rank}.json").write_text(json.dumps(left))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
