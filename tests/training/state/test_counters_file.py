"""Counters, and what a trainer gathered since it last logged, survive a checkpoint exactly."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.counters import Counters, StoredCounters, TrainerCounters, load_counters, save_counters
from explicit_learning.training.state.checkpointing import CheckpointingTrainer
from explicit_learning.training.state.digests import state_sha256
from tests.support.finished_run import BATCH, GENERATIONS, plan_document

if TYPE_CHECKING:
    from pathlib import Path


COUNTERS = StoredCounters(
    loop=Counters(unchanged_adapter_steps=[1, 2], terms={"policy": [4, 4, 1]}),
    trainer=TrainerCounters(loss_sum=0.1 + 0.2, last_logged=2, metrics={"kl": [(1e-17).hex()]}, total_tokens=17),
)
# What a rank of `plan_document`'s plan has counted after three steps.
AFTER_3_STEPS = Counters(records=3 * BATCH // GENERATIONS, truncated=3, terms={"policy": [3, 3, 1]})


def test_counters_come_back_exactly(tmp_path: Path) -> None:
    save_counters(tmp_path, 0, COUNTERS)
    assert load_counters(tmp_path, 0) == COUNTERS


@pytest.mark.parametrize(
    ("group", "changes", "pointer"),
    [
        ("loop", {"records": "3"}, "/loop/records"),
        ("loop", {"terms": {"policy": [4, 4]}}, "/loop/terms/policy"),
        ("trainer", {"metrics": {"kl": [0.5]}}, "/trainer/metrics/kl/0"),
        ("trainer", {"steps": 3}, "/trainer/steps"),
    ],
)
def test_counters_that_break_their_schema_are_not_loaded(
    tmp_path: Path, group: str, changes: dict[str, Any], pointer: str
) -> None:
    value = to_json(COUNTERS)
    value[group] |= changes
    (tmp_path / "counters-rank-0.json").write_text(json.dumps(value))
    with pytest.raises(Refusal) as refusal:
        load_counters(tmp_path, 0)
    assert [fault.pointer for fault in refusal.value.faults] == [pointer]


def test_counters_that_break_their_schema_are_not_saved(tmp_path: Path) -> None:
    broken = replace(COUNTERS, loop=Counters(malformed=-1))
    with pytest.raises(Refusal, match="/loop/malformed") as refusal:
        save_counters(tmp_path, 0, broken)
    assert refusal.value.exit_code == ExitCode.INTERNAL
    assert list(tmp_path.iterdir()) == []


def trainer(loss: float, metrics: dict[str, list[float]]) -> Any:
    """Return a trainer's counting part, in the middle of a logging interval."""
    made: Any = object.__new__(CheckpointingTrainer)
    manifest = SimpleNamespace(plan=from_json(Plan, plan_document()))
    context = SimpleNamespace(rank=0, manifest=manifest)
    made.loop = SimpleNamespace(counters=replace(AFTER_3_STEPS), context=context)
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
    metrics = {"rewards/std": ["nan", "0x1.3333333333334p-2"], "kl": ["inf"]}
    loss = float(torch.tensor(0.1))
    assert counted == {
        "loop": {name: value for name, value in to_json(AFTER_3_STEPS).items() if name != "validation"},
        "trainer": {"loss_sum": loss, "last_logged": 2, "metrics": metrics, "total_tokens": 17},
        "steps": {"done": 3, "backward_passes": 0},
    }
    save_counters(tmp_path, 0, before._counters())
    assert load_counters(tmp_path, 0).trainer.metrics == metrics
    after = trainer(0.0, {})
    after.loop.counters = Counters()
    after.restore_counters(tmp_path)
    assert after.loop.counters == AFTER_3_STEPS
    kept = after._metrics["train"]["rewards/std"]
    assert math.isnan(kept[0])
    assert kept[1] == 0.30000000000000004
    assert (after._globalstep_last_logged, after._total_train_tokens) == (2, 17)
    assert float(after._tr_loss) == float(torch.tensor(0.1))
    assert after.counters_as_loaded == state_sha256(counted)
    assert after.resumed == ["counters"]
