"""Counters, and what a trainer gathered since it last logged, survive a checkpoint exactly."""

from __future__ import annotations

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.training.counters import Counters, load_counters, save_counters
from explicit_learning.training.state.checkpointing import CheckpointingTrainer
from explicit_learning.training.state.digests import state_sha256

if TYPE_CHECKING:
    from pathlib import Path


def test_counters_come_back_exactly(tmp_path: Path) -> None:
    counters = {"loop": {"steps": [1, 2]}, "trainer": {"loss_sum": 0.1 + 0.2, "metrics": {"kl": [1e-17]}}}
    save_counters(tmp_path, 0, counters)
    assert load_counters(tmp_path, 0) == counters


def trainer(loss: float, metrics: dict[str, list[float]]) -> Any:
    """Return a trainer's counting part, in the middle of a logging interval."""
    made: Any = object.__new__(CheckpointingTrainer)
    made.loop = SimpleNamespace(counters=Counters(truncated=3), context=SimpleNamespace(rank=0))
    made.state = SimpleNamespace(global_step=3)
    made.resumed = []
    made._tr_loss = torch.tensor(loss)
    made._globalstep_last_logged = 2
    made._metrics = {"train": defaultdict(list, metrics)}
    made._total_train_tokens = 17
    return made


def test_a_metric_that_is_not_a_number_is_kept(tmp_path: Path) -> None:
    """A group whose completions were all cut off has no reward, so its standard deviation is NaN."""
    before = trainer(0.1, {"rewards/std": [math.nan, 0.30000000000000004], "kl": [math.inf], "logged": []})
    counted = before.counted()
    save_counters(tmp_path, 0, {"loop": counted["loop"], "trainer": counted["trainer"]})
    assert load_counters(tmp_path, 0)["trainer"]["metrics"] == {
        "rewards/std": ["nan", "0x1.3333333333334p-2"],
        "kl": ["inf"],
    }
    after = trainer(0.0, {})
    after.loop.counters = Counters()
    after.restore_counters(tmp_path)
    kept = after._metrics["train"]["rewards/std"]
    assert math.isnan(kept[0])
    assert kept[1] == 0.30000000000000004
    assert (after._globalstep_last_logged, after._total_train_tokens) == (2, 17)
    assert float(after._tr_loss) == float(torch.tensor(0.1))
    assert after.counters_as_loaded == state_sha256(counted)
    assert after.resumed == ["counters"]
