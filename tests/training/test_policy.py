"""The policy: exactly the planned adapter, seeded, on a base that stays as it is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import Refusal
from explicit_learning.files.typed_json import from_json
from explicit_learning.inputs.lora_targets import planned_targets
from explicit_learning.model_files.adapter_names import adapted_modules
from explicit_learning.model_files.parts import part_of
from explicit_learning.model_files.weights import linear_modules, weighted_modules
from explicit_learning.plan.typed_plan import Plan
from tests.support.plans import MODEL, write_plan

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.training.policy import Policy

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def plan(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = write_plan(tmp_path_factory.mktemp("plans") / "plan.json", "sft_certificate", digits)
    return from_json(Plan, json.loads(path.read_text()))


def _policy(plan: Plan, adapter: Path | None = None) -> Policy:
    from explicit_learning.training.policy import build_policy

    return build_policy(plan, model=MODEL, initial_adapter=adapter)


def _digest(policy: Policy) -> str:
    from explicit_learning.training.state.adapters import adapter_tensors
    from explicit_learning.training.state.digests import live_tensors_sha256

    return live_tensors_sha256(adapter_tensors(policy.model, "default"))


def _write(policy: Policy, folder: Path) -> Path:
    from explicit_learning.training.state.adapters import write_adapter_folder

    folder.mkdir()
    write_adapter_folder(folder, policy.model, adapter="default", base_name="tiny")
    return folder


def test_all_linear_is_every_linear_module_but_the_head(plan: Plan) -> None:
    from torch import nn

    from explicit_learning.training.policy import base_modules

    policy = _policy(plan)
    base = policy.model.get_base_model()
    linear = {name.replace(".base_layer", "") for name, part in base.named_modules() if type(part) is nn.Linear}
    linear = {name for name in linear if ".lora_" not in name}
    assert set(policy.targets) == linear - {"lm_head"}
    shapes = {name: tuple(base.get_submodule(name).weight.shape) for name in linear}
    assert linear_modules(MODEL) == shapes, "what the gates read from the files is what the model has"
    assert set(weighted_modules(MODEL)) == set(base_modules(policy.model)), "likewise"
    assert any("visual" in name for name in policy.targets)
    assert any("linear_attn" in name for name in policy.targets)
    trainable = [name for name, part in policy.model.named_parameters() if part.requires_grad]
    assert len(trainable) == 2 * len(policy.targets)
    assert all(".lora_" in name for name in trainable)


def test_named_modules_and_exclusions_are_whole_components(plan: Plan) -> None:
    named = replace(plan, lora=replace(plan.lora, target_modules=("q_proj", "v_proj"), exclude_modules=()))
    assert {name.rpartition(".")[2] for name in _policy(named).targets} == {"q_proj", "v_proj"}
    less = replace(plan, lora=replace(plan.lora, exclude_modules=("lm_head", "proj", "linear_fc1")))
    kept = {name.rpartition(".")[2] for name in _policy(less).targets}
    assert "q_proj" in kept
    assert not kept & {"proj", "linear_fc1"}


@pytest.mark.parametrize("parts", [("language",), ("vision",), ("merger",), ("language", "merger")])
def test_training_adapts_exactly_the_parts_that_the_plan_names(plan: Plan, parts: tuple[str, ...]) -> None:
    from explicit_learning.training.policy import trainable_parameters

    lora = replace(plan.lora, target_modules=parts)
    policy = _policy(replace(plan, lora=lora))
    assert policy.targets == planned_targets(MODEL, lora)
    assert {part_of(name) for name in policy.targets} == set(parts)
    assert set(adapted_modules(trainable_parameters(policy.model))) == set(policy.targets)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"target_modules": ("q_proj", "nothing")}, "nothing"),
        ({"target_modules": ("q_proj",), "exclude_modules": ("q_proj",)}, "no module is left"),
    ],
)
def test_unknown_or_no_modules_are_refused(plan: Plan, change: dict[str, Any], found: str) -> None:
    with pytest.raises(Refusal) as refused:
        _policy(replace(plan, lora=replace(plan.lora, **change)))
    assert found in refused.value.faults[0].found


def test_initialisation_depends_on_the_seed_and_nothing_else(plan: Plan) -> None:
    import torch

    first = _digest(_policy(plan))
    torch.rand(11)
    assert _digest(_policy(plan)) == first
    assert _digest(_policy(replace(plan, seed=plan.seed + 1))) != first


def test_initial_adapter_is_loaded_whole_and_trainable(plan: Plan, tmp_path: Path) -> None:
    import torch

    policy = _policy(plan)
    with torch.no_grad():
        for name, part in policy.model.named_parameters():
            if ".lora_B." in name:
                part.normal_()
    folder = _write(policy, tmp_path / "adapter")
    loaded = _policy(replace(plan, seed=99), folder)
    assert _digest(loaded) == _digest(policy)
    assert sum(part.requires_grad for part in loaded.model.parameters()) == 2 * len(policy.targets)


def test_an_initial_adapter_in_another_type_is_loaded_whole(plan: Plan, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = _write(_policy(plan), tmp_path / "adapter")
    weights = folder / "adapter_model.safetensors"
    halved = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(weights).items()}
    save_file(halved, weights)
    loaded = _policy(replace(plan, seed=99), folder)
    live = dict(loaded.model.named_parameters())
    name = min(halved)
    assert torch.equal(live[name.replace(".weight", ".default.weight")], halved[name].float())


def test_an_initial_adapter_that_peft_did_not_load_is_refused(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import peft

    folder = _write(_policy(plan), tmp_path / "adapter")
    monkeypatch.setattr(peft, "set_peft_model_state_dict", lambda *_, **__: None)
    with pytest.raises(Refusal, match="after loading") as refused:
        _policy(replace(plan, seed=99), folder)
    (fault,) = refused.value.faults
    assert fault.file == str(folder / "adapter_model.safetensors")


def test_adapter_of_another_shape_is_refused_by_field(plan: Plan, tmp_path: Path) -> None:
    folder = _write(_policy(plan), tmp_path / "adapter")
    other = replace(plan, lora=replace(plan.lora, rank=2, alpha=4.0))
    with pytest.raises(Refusal) as refused:
        _policy(other, folder)
    assert {fault.pointer for fault in refused.value.faults} == {"/r", "/lora_alpha"}
    fewer = replace(plan, lora=replace(plan.lora, target_modules=("q_proj",), exclude_modules=()))
    with pytest.raises(Refusal, match=r"4 tensors; base_model\.model\.\S+ is not one of them"):
        _policy(fewer, folder)


def test_config_with_an_unplanned_method_is_refused(plan: Plan, tmp_path: Path) -> None:
    folder = _write(_policy(plan), tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(Refusal, match="use_dora"):
        _policy(plan, folder)


def test_truncated_adapter_is_refused(plan: Plan, tmp_path: Path) -> None:
    folder = _write(_policy(plan), tmp_path / "adapter")
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(Refusal, match="cannot be read"):
        _policy(plan, folder)


def test_base_tensors_are_the_model_s_own_whatever_the_adapter(plan: Plan) -> None:
    from explicit_learning.training.policy import base_tensors, load_base
    from explicit_learning.training.state.digests import live_tensors_sha256

    bare = load_base(MODEL, plan.model, accelerator="cpu", strict=True)
    own = {**dict(bare.named_parameters()), **dict(bare.named_buffers())}
    wrapped = base_tensors(_policy(plan).model)
    assert set(wrapped) == set(own)
    assert live_tensors_sha256(wrapped) == live_tensors_sha256(own)
