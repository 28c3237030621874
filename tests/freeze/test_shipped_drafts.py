"""Every draft that ships is complete: one per arm and model, valid, with no field left to guess."""

from __future__ import annotations

import json

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.experiment.document import read_experiment
from explicit_learning.files.resources import PLANS
from explicit_learning.files.schema import validate
from explicit_learning.freeze.draft import fill_defaults

FOLDERS = ("demo", "qwen3.5-2b")


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("arm", ARMS)
def test_a_draft_of_every_arm_is_valid_and_can_be_filled(folder: str, arm: str) -> None:
    draft = json.loads((PLANS / folder / f"{arm}.json").read_text())
    assert validate(draft, "draft", gate="draft", file=arm) == []
    filled, faults = fill_defaults(draft)
    assert faults == []
    assert filled["arm"] == arm
    on_gpu = folder != "demo"
    assert filled["model"]["dtype"] == ("bfloat16" if on_gpu else "float32")
    assert filled["model"]["attn_implementation"] == ("flash_attention_2" if on_gpu else "sdpa")
    assert filled["generation"]["evaluation_batch_size"] == (16 if on_gpu else 64)
    assert filled["generation"]["max_image_tokens"] == (1024 if on_gpu else None)
    if ARMS[arm].trainer == "evi_po":
        assert filled["objective"]["evi_po"]["max_rows_per_forward"] == (8 if on_gpu else 32)


def test_the_large_models_experiment_names_every_rl_arm() -> None:
    experiment = read_experiment(PLANS / "qwen3.5-2b" / "experiment.json")
    assert [stage.arm for stage in experiment.rl] == [name for name, arm in ARMS.items() if not arm.is_sft]


def test_the_same_arm_differs_between_arms_of_a_folder_only_where_it_must() -> None:
    for folder in FOLDERS:
        drafts = [
            json.loads((PLANS / folder / f"{name}.json").read_text()) for name, arm in ARMS.items() if not arm.is_sft
        ]
        shared = [{key: value for key, value in draft.items() if key not in {"arm", "objective"}} for draft in drafts]
        assert all(draft == shared[0] for draft in shared), folder
