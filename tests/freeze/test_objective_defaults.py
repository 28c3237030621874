"""What a draft of a PAPO or EVI-PO arm is filled with: its recipe's numbers, its own zeros, and what it said itself."""

from __future__ import annotations

from typing import Any

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.files.schema import validate
from explicit_learning.freeze.draft import fill_defaults


def filled(arm: str, objective: dict[str, Any] | None = None) -> dict[str, Any]:
    draft: dict[str, Any] = {
        "arm": arm,
        "model": {"path": "m"},
        "initial_adapter": {"path": "a"},
        "data": {"digits": {}},
        "prompt": {"path": "p"},
        "optimisation": {"max_steps": 2, "per_device_batch_size": 8, "learning_rate": 0.001, "save_interval": 2},
        "generation": {"max_prompt_tokens": 96, "max_completion_tokens": 8},
    }
    if objective is not None:
        draft["objective"] = objective
    assert validate(draft, "draft", gate="draft", file="d") == []
    plan, faults = fill_defaults(draft)
    assert faults == []
    result: dict[str, Any] = plan["objective"]
    return result


def numbers(objective: dict[str, Any]) -> tuple[Any, ...]:
    papo = objective["papo"]
    names = ("gamma", "eta_aug", "eta_ori", "aug_entropy_grad")
    return (objective["beta"], objective["epsilon_high"], *(papo[name] for name in names))


def test_papos_recipes() -> None:
    assert numbers(filled("papo")) == (0.01, 0.2, 0.01, 0.0, 0.0, False)
    assert numbers(filled("papo", {"papo": {"recipe": "papo_g"}})) == numbers(filled("papo"))
    assert numbers(filled("papo", {"papo": {"recipe": "papo_d"}})) == (0.0, 0.28, 0.01, 0.03, 0.03, True)
    assert filled("papo")["evi_po"] is None


def test_what_a_draft_says_itself_comes_first() -> None:
    said = {"beta": 0.5, "epsilon_high": 0.25, "papo": {"recipe": "papo_d", "gamma": 0.02, "eta_ori": 0.0}}
    assert numbers(filled("papo", said)) == (0.5, 0.25, 0.02, 0.03, 0.0, True)
    assert filled("evi_po", {"evi_po": {"margin": 2.0}})["evi_po"]["margin"] == 2.0


@pytest.mark.parametrize("arm", sorted(name for name, arm in ARMS.items() if arm.trainer == "evi_po"))
def test_evi_po_arms_differ_in_what_they_leave_out(arm: str) -> None:
    objective = filled(arm)
    expected = (0.0 if arm.endswith("no_direction") else 0.5, 0.0 if arm.endswith("no_evidence") else 0.1)
    assert (objective["evi_po"]["lambda_dir"], objective["evi_po"]["lambda_ev"]) == expected
    assert objective["beta"] == 0.0
    assert objective["papo"] is None


@pytest.mark.parametrize("arm", sorted(name for name, arm in ARMS.items() if arm.trainer == "grpo"))
def test_other_arms_have_neither_block_nor_kl(arm: str) -> None:
    objective = filled(arm)
    assert (objective["papo"], objective["evi_po"], objective["beta"]) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("block", "name", "values"),
    [
        ("papo", "gamma", (-0.01, 1.01, "0.01", None)),
        ("papo", "eta_aug", (-0.01, 1.01)),
        ("papo", "eta_ori", (-0.01, 1.01)),
        ("papo", "mask_probability", (0, 1, -0.5, 1.5)),
        ("papo", "mask_patch_pixels", (0, 4097, 1.5)),
        ("evi_po", "lambda_dir", (-0.1, 100.5, True)),
        ("evi_po", "lambda_ev", (-0.1, 100.5)),
        ("evi_po", "kappa", (-1,)),
        ("evi_po", "margin", (-1,)),
        ("evi_po", "tau", (0, -0.07, 10.5)),
        ("evi_po", "max_rows_per_forward", (0, 4097)),
    ],
)
def test_a_coefficient_out_of_range_is_refused_by_field(block: str, name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        draft = {"objective": {block: {name: value}}}
        pointer = f"/objective/{block}/{name}"
        assert pointer in {fault.pointer for fault in validate(draft, "draft", gate="draft", file="d")}, value
