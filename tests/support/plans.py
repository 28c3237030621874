"""Plans for tests: the golden example to change and break, and real ones frozen from drafts."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from explicit_learning.files.resources import PLANS, PROMPTS, SCHEMAS
from explicit_learning.freeze.freezing import freeze
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PLAN: dict[str, Any] = json.loads((SCHEMAS / "examples" / "plan.json").read_text())
# The embedded model, as the demo's drafts name it.
DEMO = PLANS / "demo" / "sft_certificate.json"
MODEL = (DEMO.parent / json.loads(DEMO.read_text())["model"]["path"]).resolve()

# A group of a frozen plan that validates; it fits the golden example's intervals.
VALIDATION: dict[str, Any] = {
    "every_steps": 20,
    "share": 0.1,
    "seed": 0,
    "slots": {"path": "digits-0-demo/slots.jsonl", "sha256": "3" * 64},
    "groups": 2,
    "questions": 8,
    "questions_sha256": "7" * 64,
}

DRAFT: dict[str, Any] = {
    "seed": 3,
    "data_seed": 5,
    "model": {"path": str(MODEL)},
    "prompt": {"path": str(PROMPTS / "common_system.txt")},
    "lora": {"rank": 4, "alpha": 8},
    "optimisation": {
        "per_device_batch_size": 8,
        "learning_rate": 2e-3,
        "gradient_checkpointing": False,
        "save_interval": 100,
        "dataloader_workers": 0,
    },
    "generation": {"max_prompt_tokens": 160, "max_completion_tokens": 12},
}
RL: dict[str, Any] = {
    "optimisation": {"max_steps": 8, "per_device_batch_size": 16},
    "generation": {"num_generations": 4},
}


def plan_with(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the golden plan with fields replaced by JSON pointer, frozen again."""
    plan = copy.deepcopy(PLAN)
    for pointer, value in changes.items():
        *parents, name = pointer.split("/")[1:]
        holder = plan
        for parent in parents:
            holder = holder[parent]
        holder[name] = copy.deepcopy(value)
    plan[FROZEN] = frozen_config_sha256(plan)
    return plan


def write_plan(path: Path, arm: str, data: Path, *changes: Mapping[str, Any]) -> Path:
    """Freeze a plan of an arm on a dataset's folder; changes are merged into the draft, later ones win."""
    from explicit_learning.training.tokens import count_sft_pass

    draft: dict[str, Any] = {"arm": arm, "data": {"manifest": str(data / "dataset-manifest.json")}}
    for change in (DRAFT, {} if arm.startswith("sft") else RL, *changes):
        _merge(draft, change)
    path.parent.mkdir(parents=True, exist_ok=True)
    freeze(draft, file=path.with_suffix(".draft.json"), out=path, count_sft=count_sft_pass)
    return path


def _merge(into: dict[str, Any], change: Mapping[str, Any]) -> None:
    for name, value in change.items():
        if isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value
