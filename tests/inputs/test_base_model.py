"""The base model that a plan or draft names: of the right architecture, plain weights, settings that can be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.inputs.base_model import read_base_model
from explicit_learning.model_files.architecture import SIZES
from explicit_learning.model_files.dimensions import Dimensions
from tests.support.named_inputs import FP8, change_json, checking, freezing, frozen_again, place, retype, rewrite_header


@pytest.mark.parametrize(
    "quantisation",
    [
        FP8,
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "no_such_method"},
        {},
    ],
)
def test_a_quantised_model_is_refused_when_frozen_and_when_checked(
    draft: dict[str, Any], model: Path, tmp_path: Path, quantisation: dict[str, Any]
) -> None:
    out = tmp_path / "plan.json"
    assert freezing(draft, out) == []
    change_json(model / "config.json", quantization_config=quantisation)
    (fault,) = checking(frozen_again(out))
    assert place(fault) == ("config.json", "/quantization_config")
    assert fault.found == json.dumps(quantisation)
    assert fault.expected == "a model that is not quantised"
    assert fault.exit_code == ExitCode.CONTRACT
    assert freezing(draft, tmp_path / "another.json") == [fault]


def test_a_quantised_language_model_is_named_where_it_is_written(
    draft: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    text = json.loads((model / "config.json").read_text())["text_config"]
    change_json(model / "config.json", text_config=text | {"quantization_config": FP8})
    assert [place(fault) for fault in freezing(draft, tmp_path / "plan.json")] == [
        ("config.json", "/text_config/quantization_config")
    ]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"compression_config": FP8}, "/compression_config"),
        ({"vision_config": {"quantization_config": FP8}}, "/vision_config/quantization_config"),
        ({"text_config": {"a": {"compression_config": FP8}}}, "/text_config/a/compression_config"),
    ],
)
def test_a_quantised_part_is_named_wherever_it_is_written(
    draft: dict[str, Any], model: Path, tmp_path: Path, change: dict[str, Any], pointer: str
) -> None:
    config = json.loads((model / "config.json").read_text())
    change_json(model / "config.json", **{name: config.get(name, {}) | value for name, value in change.items()})
    assert [place(fault) for fault in freezing(draft, tmp_path / "plan.json")] == [("config.json", pointer)]


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quant_config.json", "quantize_config.json"])
def test_settings_of_a_quantised_model_beside_its_configuration(
    draft: dict[str, Any], model: Path, tmp_path: Path, name: str
) -> None:
    (model / name).write_text("{}")
    assert [place(fault) for fault in freezing(draft, tmp_path / "plan.json")] == [(name, "")]


@pytest.mark.parametrize("kind", ["F8_E4M3", "I8", "U8", "I32", "F4"])
def test_weights_of_another_type_are_refused(draft: dict[str, Any], model: Path, tmp_path: Path, kind: str) -> None:
    name = "model.language_model.layers.1.mlp.up_proj.weight"
    rewrite_header(model / "model.safetensors", lambda header: retype(header[name], kind))
    (fault,) = freezing(draft, tmp_path / "plan.json")
    assert Path(fault.file or "").name == "model.safetensors"
    assert fault.found == f"tensors of another type: 1, the first {name} ({kind})"
    assert fault.expected == "weights of type BF16, F16, F32, F64"


def test_positions_are_not_weights(draft: dict[str, Any], model: Path, tmp_path: Path) -> None:
    name = "model.visual.merger.norm.bias"
    rewrite_header(model / "model.safetensors", lambda header: retype(header[name], "I64"))
    assert freezing(draft, tmp_path / "plan.json") == []


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["[]", "{", "3"])
def test_settings_that_cannot_be_read_are_a_fault(model: Path, name: str, text: str) -> None:
    (model / name).write_text(text)
    with pytest.raises(Refusal) as caught:
        read_base_model(model)
    assert [fault.gate for fault in caught.value.faults] == ["model"]


@pytest.mark.parametrize("kind", ["llama", "qwen3_5_moe", "qwen3_5_text", "", None, 3, ...])
def test_a_model_of_another_architecture_is_refused_when_frozen_and_when_checked(
    draft: dict[str, Any], model: Path, tmp_path: Path, kind: Any
) -> None:
    out = tmp_path / "plan.json"
    assert freezing(draft, out) == []
    config = json.loads((model / "config.json").read_text())
    del config["model_type"]
    (model / "config.json").write_text(json.dumps(config | ({} if kind is ... else {"model_type": kind})))
    (fault,) = checking(frozen_again(out))
    assert place(fault) == ("config.json", "/model_type")
    assert fault.found == ("nothing" if kind is ... else json.dumps(kind))
    assert fault.expected.startswith('"qwen3_5"')
    assert fault.exit_code == ExitCode.CONTRACT
    assert freezing(draft, tmp_path / "another.json") == [fault]


@pytest.mark.parametrize("part", ["text_config", "vision_config"])
@pytest.mark.parametrize("value", [None, [], "qwen", ...])
def test_a_configuration_without_a_part_is_refused(
    draft: dict[str, Any], model: Path, tmp_path: Path, part: str, value: Any
) -> None:
    config = json.loads((model / "config.json").read_text())
    del config[part]
    (model / "config.json").write_text(json.dumps(config | ({} if value is ... else {part: value})))
    (fault,) = freezing(draft, tmp_path / "plan.json")
    assert place(fault) == ("config.json", f"/{part}")
    assert fault.found == ("nothing" if value is ... else json.dumps(value))


@pytest.mark.parametrize("place", [f"{part}/{name}" for part, names in SIZES.items() for name in names])
@pytest.mark.parametrize("value", [None, 0, 2.0, "2", True, ...])
def test_a_size_that_is_missing_or_is_not_a_number_is_refused(model: Path, place: str, value: Any) -> None:
    part, _, name = place.partition("/")
    settings = json.loads((model / "config.json").read_text())[part]
    del settings[name]
    change_json(model / "config.json", **{part: settings | ({} if value is ... else {name: value})})
    with pytest.raises(Refusal) as caught:
        read_base_model(model)
    assert [(fault.pointer, fault.found) for fault in caught.value.faults] == [
        (f"/{place}", "nothing" if value is ... else json.dumps(value))
    ]


@pytest.mark.parametrize("kinds", [None, [], "full_attention", ["full_attention", "sliding_attention"], [["x"]], ...])
def test_layers_of_another_kind_are_refused(model: Path, kinds: Any) -> None:
    settings = json.loads((model / "config.json").read_text())["text_config"]
    del settings["layer_types"]
    change_json(model / "config.json", text_config=settings | ({} if kinds is ... else {"layer_types": kinds}))
    with pytest.raises(Refusal) as caught:
        read_base_model(model)
    assert [fault.pointer for fault in caught.value.faults] == ["/text_config/layer_types"]


def test_a_model_that_is_accepted_has_dimensions(model: Path) -> None:
    read_base_model(model)
    assert Dimensions.of_model(model).layers == 3


@pytest.mark.parametrize("rate", [0.1, 1])
def test_a_model_that_drops_attention_weights_at_random_is_refused(
    draft: dict[str, Any], model: Path, tmp_path: Path, rate: float
) -> None:
    text = json.loads((model / "config.json").read_text())["text_config"]
    change_json(model / "config.json", text_config=text | {"attention_dropout": rate})
    (fault,) = freezing(draft, tmp_path / "plan.json")
    assert place(fault) == ("config.json", "/text_config/attention_dropout")
    assert fault.found == str(rate)
    change_json(model / "config.json", text_config=text | {"attention_dropout": 0.0})
    assert freezing(draft, tmp_path / "plan.json") == []


def test_sequences_that_the_model_is_not_made_for_are_refused_when_frozen_and_when_checked(
    draft: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    assert freezing(draft, out) == []
    plan = json.loads(out.read_bytes())
    longest = max(plan["generation"]["context_tokens"], (plan["vllm"] or {}).get("max_model_len", 0))
    config = json.loads((model / "config.json").read_bytes())
    config["text_config"]["max_position_embeddings"] = longest
    (model / "config.json").write_text(json.dumps(config))
    assert checking(frozen_again(out)) == []
    config["text_config"]["max_position_embeddings"] = longest - 1
    (model / "config.json").write_text(json.dumps(config))
    faults = checking(frozen_again(out))
    assert {fault.pointer for fault in faults} <= {"/generation/context_tokens", "/vllm/max_model_len"}
    assert faults
    for fault in faults:
        assert fault.found == str(longest)
        assert fault.expected == f"at most {longest - 1}, the model's max_position_embeddings"
        assert fault.exit_code == ExitCode.CONTRACT
    assert [replace(fault, file="") for fault in freezing(draft, tmp_path / "another.json")] == [
        replace(fault, file="") for fault in faults
    ]
