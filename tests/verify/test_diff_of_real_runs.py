"""`el diff` of runs that were trained: one plan twice, and another seed of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import PLANS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.training

SIZE = {
    "optimisation.max_steps": 2,
    "optimisation.per_device_batch_size": 8,
    "optimisation.save_interval": 1,
    "generation.num_generations": 4,
}


def el(*words: Any) -> str:
    command = [sys.executable, str(ROOT / "entrypoint.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def trained(plan: Path, run: Path, digits_manifest: Path, **changes: Any) -> Path:
    changed = {"data": json.dumps({"manifest": str(digits_manifest)}), **SIZE, **changes}
    settings = [word for name, value in changed.items() for word in ("--set", f"{name}={value}")]
    if not plan.exists():
        el("freeze", PLANS / "demo" / "answer_grpo.json", "-o", plan, *settings)
    el("run", plan, "--out", run)
    return run


def test_a_plan_trained_twice_is_identical_and_another_seed_parts(tmp_path: Path, digits_manifest: Path) -> None:
    plan = tmp_path / "plan.json"
    a, b = (trained(plan, tmp_path / name, digits_manifest) for name in ("a", "b"))
    c = trained(tmp_path / "other.json", tmp_path / "c", digits_manifest, seed=5)

    same = json.loads(el("diff", a, b, "--json"))
    assert same["identical"] is True
    assert {each["file"]: each["rows"] for each in same["diff"]["computed"]["files"]} == {
        "accounting/rank-0/trace.jsonl": 16,
        "metrics.jsonl": 2,
        "checkpoint-1/adapter_model.safetensors": 64,
        "checkpoint-2/adapter_model.safetensors": 64,
        "final-adapter/adapter_model.safetensors": 64,
    }
    assert [section["name"] for section in same["diff"]["sections"] if section["differences"]] == []
    assert "identical: the same rows, losses and adapters at every step\n" in el("diff", a, b)

    other = json.loads(el("diff", a, c, "--json"))
    assert other["identical"] is False
    assert other["diff"]["comparability"]["besides_the_arm"] == ["/seed"]
    first = other["diff"]["computed"]["first"]
    assert (first["step"], first["file"]) == (1, "accounting/rank-0/trace.jsonl")
    assert "completion_token_ids" in [field["field"] for field in first["fields"]]
