"""Each rule between fields, broken alone and all together."""

from __future__ import annotations

from typing import Any

import pytest

from explicit_learning.errors import found_text
from explicit_learning.files.schema import load_schema, validate
from explicit_learning.plan.rules import broken_rules, warnings
from tests.support.plans import PLAN, plan_with

SFT = {
    "/arm": "sft_certificate",
    "/reward": None,
    "/objective": None,
    "/vllm": None,
    "/initial_adapter": None,
    "/data/slot_manifest_sha256": None,
    "/generation/num_generations": 1,
    "/budget": {"max_completion_tokens_per_run": None, "max_sft_loss_tokens": 900, "planned_sft_loss_tokens": 800},
}
PAPO = {
    "adapter_version": "papo/1",
    "upstream_sha256": load_schema("plan")["properties"]["objective"]["properties"]["papo"]["properties"][
        "upstream_sha256"
    ]["const"],
    "recipe": "custom",
    "gamma": 0.01,
    "eta_aug": 0.03,
    "eta_ori": 0.03,
    "aug_entropy_grad": True,
    "mask_probability": 0.6,
    "mask_patch_pixels": 32,
}


def pointers(changes: dict[str, Any]) -> list[str]:
    plan = plan_with(changes)
    assert validate(plan, "plan", gate="plan", file="p") == []
    faults = broken_rules(plan, [], gate="plan", file="p")
    assert all(fault.fix and fault.expected and fault.file == "p" for fault in faults)
    return [fault.pointer or "" for fault in faults]


def test_planned_loss_tokens_are_those_of_sft_arms_alone() -> None:
    pointer = "/budget/planned_sft_loss_tokens"
    (fault,) = broken_rules(plan_with({pointer: 5}), [], gate="plan", file="p")
    assert (fault.pointer, fault.found, fault.expected) == (pointer, "5", "null: RL arms plan no loss tokens")
    (fault,) = broken_rules(plan_with(SFT | {pointer: None}), [], gate="plan", file="p")
    assert (fault.pointer, fault.found, fault.expected) == (pointer, "null", "the loss tokens of the planned steps")


@pytest.mark.parametrize(
    ("pointer", "value", "expected"),
    [
        ("/generation/answer_regex", ".*", "by which answers are read"),
        ("/generation/answer_regex", "<answer>[^<>]{0,64}</answer>", "by which answers are read"),
        ("/code_commit", "0" * 40, "the commit of the code that froze the plan"),
    ],
)
def test_what_freezing_wrote_cannot_be_edited(pointer: str, value: str, expected: str) -> None:
    (fault,) = broken_rules(plan_with({pointer: value}), [], gate="plan", file="p")
    assert (fault.pointer, fault.found, fault.fix) == (pointer, f'"{value}"', "freeze the draft again")
    assert expected in fault.expected


def test_the_golden_plan_and_its_sft_form_break_none() -> None:
    assert pointers({}) == []
    assert pointers(SFT) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"/reward": None}, ["/reward"]),
        ({"/vllm": None}, ["/vllm"]),
        ({**SFT, "/reward": PLAN["reward"]}, ["/reward"]),
        ({"/objective/papo": PAPO}, ["/objective/papo"]),
        ({"/objective/papo": PAPO | {"aug_entropy_grad": False}}, ["/objective/papo", "/objective/papo/eta_aug"]),
        ({"/initial_adapter": None}, ["/initial_adapter"]),
        ({"/budget/max_completion_tokens_per_run": None}, ["/budget/max_completion_tokens_per_run"]),
        ({"/budget/max_sft_loss_tokens": 5}, ["/budget/max_sft_loss_tokens"]),
        ({**SFT, "/budget/planned_sft_loss_tokens": 901}, ["/budget/planned_sft_loss_tokens"]),
        ({"/data/slot_manifest_sha256": None}, ["/data/slot_manifest_sha256"]),
        ({**SFT, "/data/slot_manifest_sha256": "5" * 64}, ["/data/slot_manifest_sha256"]),
        ({"/lora/dropout": 0.1}, ["/lora/dropout"]),
        ({**SFT, "/lora/dropout": 0.1}, []),
        ({"/generation/num_generations": 1}, ["/generation/num_generations"]),
        ({**SFT, "/generation/num_generations": 2}, ["/generation/num_generations"]),
        ({"/optimisation/per_device_batch_size": 12}, ["/optimisation/per_device_batch_size"]),
        ({"/optimisation/per_device_batch_size": 4, "/optimisation/gradient_accumulation_steps": 2}, []),
        ({"/objective/num_iterations": 7}, ["/optimisation/save_interval", "/optimisation/max_steps"]),
        ({"/generation/context_tokens": 107}, ["/generation/context_tokens"]),
        ({"/generation/temperature": 1e-39}, ["/generation/temperature"]),
        ({"/generation/temperature": 9e-5}, ["/generation/temperature"]),
        ({"/generation/temperature": 0.0001}, []),
        ({"/generation/temperature": 100}, []),
        ({**SFT, "/generation/temperature": 1e-39}, []),
        ({"/vllm/max_model_len": 107}, ["/vllm/max_model_len"]),
        ({"/run_mode": "smoke", "/optimisation/max_steps": 5}, ["/optimisation/max_steps"]),
        ({"/run_mode": "smoke", "/objective/num_iterations": 2}, ["/objective/num_iterations"]),
        ({"/hardware/gpu_name_pattern": "H200"}, ["/hardware/gpu_name_pattern"]),
        ({"/hardware/driver_minimum": "580.65.06"}, ["/hardware/driver_minimum"]),
        ({"/model/attn_implementation": "flash_attention_2"}, ["/model/attn_implementation"]),
    ],
)
def test_each_rule_names_its_field(changes: dict[str, Any], expected: list[str]) -> None:
    assert pointers(changes) == expected


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        (
            {**SFT, "/reward": {"answer": 1}},
            '{"answer": 1}',
            "null in the arm sft_certificate, which samples no completions",
        ),
        ({"/vllm": None}, "null", "an object with the vllm fields: the arm answer_grpo samples completions"),
        ({"/objective/papo": PAPO}, found_text(PAPO), "null in the arm answer_grpo, whose loss has no papo term"),
        ({"/arm": "papo", "/objective/papo": None}, "null", "an object with the papo coefficients of the arm papo"),
        (
            {"/budget/max_completion_tokens_per_run": None},
            "null",
            "an integer: the most sampled tokens that a run of the arm answer_grpo may spend",
        ),
        ({"/budget/max_sft_loss_tokens": 5}, "5", "null in the arm answer_grpo, which spends no loss tokens"),
    ],
)
def test_a_fault_shows_the_value_and_names_the_arm(changes: dict[str, Any], found: str, expected: str) -> None:
    (fault,) = broken_rules(plan_with(changes), [], gate="plan", file="p")
    assert (fault.found, fault.expected) == (found, expected)


def test_all_rules_speak_at_once() -> None:
    broken = {
        "/initial_adapter": None,
        "/budget/max_sft_loss_tokens": 5,
        "/data/slot_manifest_sha256": None,
        "/lora/dropout": 0.1,
        "/optimisation/per_device_batch_size": 12,
        "/generation/context_tokens": 1,
        "/vllm/sleep_mode": True,
        "/run_mode": "smoke",
        "/optimisation/max_steps": 5,
        "/hardware/compute_capability": "9.0",
        "/model/attn_implementation": "flash_attention_2",
    }
    assert set(pointers(broken)) == broken.keys() - {"/run_mode"}


def test_a_field_that_its_schema_refused_is_not_judged_again() -> None:
    plan = plan_with({"/optimisation/per_device_batch_size": "many", "/lora/dropout": 0.1})
    schema_faults = validate(plan, "plan", gate="plan", file="p")
    assert [fault.pointer for fault in schema_faults] == ["/optimisation/per_device_batch_size"]
    rules = broken_rules(plan, schema_faults, gate="plan", file="p")
    assert [fault.pointer for fault in rules] == ["/lora/dropout"]


@pytest.mark.parametrize("group", ["model", "data", "lora", "optimisation", "generation", "budget", "hardware"])
@pytest.mark.parametrize("value", [None, 3, "text", [], {}])
def test_a_group_of_the_wrong_type_breaks_no_rule_and_no_program(group: str, value: Any) -> None:
    plan = plan_with({f"/{group}": value})
    schema_faults = validate(plan, "plan", gate="plan", file="p")
    assert schema_faults
    broken_rules(plan, schema_faults, gate="plan", file="p")


def test_a_tight_budget_is_a_warning_with_both_numbers() -> None:
    # 60 steps x 32 completions x 12 tokens = 23,040
    assert warnings(PLAN) == []
    (warning,) = warnings(plan_with({"/budget/max_completion_tokens_per_run": 23_039}))
    assert "23,039" in warning
    assert "23,040" in warning


def test_an_arm_without_a_term_weighs_it_with_nothing() -> None:
    evi_po = {
        "adapter_version": "evi_po/1",
        "lambda_dir": 0.5,
        "lambda_ev": 0.1,
        "kappa": 1.0,
        "margin": 1.0,
        "tau": 0.07,
        "max_rows_per_forward": 32,
    }
    for arm, pointer in (("evi_po_no_direction", "lambda_dir"), ("evi_po_no_evidence", "lambda_ev")):
        plan = plan_with({"/arm": arm, "/objective/evi_po": evi_po})
        assert [fault.pointer for fault in broken_rules(plan, [], gate="plan", file="p")] == [
            f"/objective/evi_po/{pointer}"
        ]
        plan = plan_with({"/arm": arm, "/objective/evi_po": evi_po | {pointer: 0.0}})
        assert broken_rules(plan, [], gate="plan", file="p") == []
    plan = plan_with({"/arm": "evi_po", "/objective/evi_po": evi_po | {"lambda_ev": 0.0}})
    assert broken_rules(plan, [], gate="plan", file="p") == []
    assert any("/objective/evi_po/lambda_ev" in warning for warning in warnings(plan))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"/optimisation/max_steps": 1, "/optimisation/warmup_ratio": 0}, None),
        ({"/optimisation/max_steps": 1, "/optimisation/warmup_ratio": 0.03}, "/optimisation/max_steps: 1: the learn"),
        ({"/optimisation/max_steps": 2, "/optimisation/warmup_ratio": 0.03}, None),
        (
            {"/optimisation/max_steps": 4, "/optimisation/warmup_ratio": 1, "/optimisation/learning_rate": 0.4},
            "all 4 steps are warm-up: the learning rate rises from 0 to 0.3 and never reaches 0.4",
        ),
        ({"/reward/answer": 0, "/reward/format": 0, "/reward/malformed": 0}, "nothing can be learnt"),
        ({"/reward/answer": 0, "/reward/format": 2, "/reward/malformed": 2}, "nothing can be learnt"),
        ({"/reward/answer": 0}, "/reward/answer: a right answer gets 0, a wrong one 0, a malformed one -1"),
        ({"/reward/answer": -1, "/reward/malformed": 1}, "/reward/answer: a right answer gets -1"),
        ({"/reward/malformed": 1}, "/reward/malformed: a right answer gets 1, a wrong one 0, a malformed one 1"),
        ({"/reward/malformed": 0.5}, None),
        ({"/objective/beta": 0.02}, "/objective/beta: 0.02"),
        ({"/arm": "papo", "/objective/papo": PAPO, "/objective/beta": 0.02}, None),
        ({"/arm": "papo", "/objective/papo": PAPO | {"gamma": 0, "eta_aug": 0}}, None),
        (
            {"/arm": "papo", "/objective/papo": PAPO | {"gamma": 0, "eta_aug": 0, "eta_ori": 0}},
            "/objective/papo: gamma, eta_aug and eta_ori are 0",
        ),
        ({"/generation/probe_interval": 50, "/generation/probe_tolerance": 0.5}, None),
        (SFT | {"/generation/evaluation_engine": "vllm"}, None),
        (
            SFT | {"/generation/probe_interval": 50},
            "/generation/probe_interval: 50: it has no effect: the arm sft_certificate samples no completions",
        ),
        (SFT | {"/generation/probe_tolerance": 0.5}, "/generation/probe_tolerance: 0.5: it has no effect"),
    ],
)
def test_a_setting_without_its_effect_has_a_warning(changes: dict[str, Any], told: str | None) -> None:
    found = warnings(plan_with(changes))
    assert len(found) == (told is not None)
    assert told is None or told in found[0]
