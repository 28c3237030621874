"""Model, adapter and prompt that a plan or draft names: what a rank would refuse is refused when frozen and checked."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file, snapshot_sha256
from explicit_learning.files.resources import ASSETS, PLANS
from explicit_learning.freeze.freezing import freeze
from explicit_learning.gates.check import check_plan
from explicit_learning.inputs.base_model import read_base_model
from explicit_learning.inputs.frozen import frozen_paths
from explicit_learning.inputs.initial_adapter import read_initial_adapter
from explicit_learning.inputs.named import read_system_prompt
from explicit_learning.inputs.sft_pass import SftPass
from explicit_learning.model_files.architecture import SIZES
from explicit_learning.model_files.dimensions import Dimensions
from explicit_learning.model_files.folders import adapter_sha256
from explicit_learning.model_files.headers import ITEM_BYTES
from explicit_learning.model_files.weights import linear_modules
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256, read_plan
from tests.support.dataset_builder import Builder

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.errors import Fault
    from explicit_learning.inputs.named import Inputs
    from explicit_learning.plan.reading import PlanDocument

MODEL = ASSETS / "tiny-vlm" / "model"
RL, SFT = (PLANS / "demo" / f"{arm}.json" for arm in ("answer_grpo", "sft_certificate"))
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
INPUTS = {"model", "adapter", "prompt", "plan"}


def three_steps(*_: Any) -> SftPass:
    return SftPass(steps=3, records=24, loss_tokens=200, left_out=0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return Builder(tmp_path / "data").write()


@pytest.fixture
def draft(model: Path, demo_adapter: Path, manifest: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RL.read_text())
    return document | {
        "model": {"path": str(model)},
        "initial_adapter": {"path": str(demo_adapter)},
        "data": {"manifest": str(manifest)},
    }


def freezing(draft: dict[str, Any], out: Path) -> list[Fault]:
    """Return why a draft cannot be frozen."""
    try:
        freeze(draft, file=RL, out=out, count_sft=three_steps)
    except Refusal as refusal:
        assert not out.exists()
        return list(refusal.faults)
    return []


def checking(plan: Path) -> list[Fault]:
    """Return what the gates find wrong with what a plan names."""
    return [fault for fault in check_plan(read_plan(plan), out=None).faults if fault.gate in INPUTS]


def frozen_again(plan: Path, **groups: dict[str, Any]) -> Path:
    """Change a plan and give it the hashes that it would have if an earlier version had frozen it so."""
    document = json.loads(plan.read_text())
    for name, change in groups.items():
        document[name] |= change
    base = plan.parent
    document["model"]["snapshot_sha256"] = snapshot_sha256(base / document["model"]["path"])
    document["initial_adapter"]["sha256"] = adapter_sha256(base / document["initial_adapter"]["path"])
    document[FROZEN] = frozen_config_sha256(document)
    plan.write_text(json.dumps(document))
    return plan


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def place(fault: Fault) -> tuple[str, str]:
    return Path(fault.file or "").name, fault.pointer or ""


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a safetensors file's header and leave its data."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def retype(entry: dict[str, Any], kind: str) -> None:
    """Give a tensor another type and a shape of as many bytes."""
    begin, end = entry["data_offsets"]
    entry |= {"dtype": kind, "shape": [(end - begin) // ITEM_BYTES.get(kind, 1)]}


# --- the base model -----------------------------------------------------------------------------------------------


def test_what_is_as_frozen_is_read(model: Path, demo_adapter: Path) -> None:
    base = read_base_model(model, frozen=snapshot_sha256(model))
    assert base.terminal == (376, 377)
    assert base.snapshot_sha256() == snapshot_sha256(model)
    adapter = read_initial_adapter(demo_adapter, frozen=adapter_sha256(demo_adapter))
    assert adapter.sha256() == adapter_sha256(demo_adapter)


def test_what_changed_since_is_found_by_its_hash(model: Path, demo_adapter: Path, tmp_path: Path) -> None:
    frozen = snapshot_sha256(model)
    (model / "config.json").write_text("{ }")
    with pytest.raises(Refusal) as caught:
        read_base_model(model, frozen=frozen)
    (fault,) = caught.value.faults
    assert (fault.gate, fault.pointer, fault.expected) == ("model", "/model/snapshot_sha256", frozen)
    assert fault.exit_code == ExitCode.CONTRACT
    frozen = adapter_sha256(demo_adapter)
    change_json(demo_adapter / "adapter_config.json", peft_version="0.1")
    with pytest.raises(Refusal) as caught:
        read_initial_adapter(demo_adapter, frozen=frozen)
    assert [fault.pointer for fault in caught.value.faults] == ["/initial_adapter/sha256"]
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(" Answer. \n")
    assert read_system_prompt(prompt, frozen=sha256_file(prompt)).text == "Answer."
    with pytest.raises(Refusal) as caught:
        read_system_prompt(prompt, frozen="0" * 64)
    assert [(fault.gate, fault.pointer) for fault in caught.value.faults] == [("prompt", "/prompt/sha256")]


def test_rows_files_are_hashed_once(draft: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(path: Path) -> str:
        raise AssertionError(f"{path} was hashed already")

    assert freezing(draft, tmp_path / "plan.json") == []
    monkeypatch.setattr("explicit_learning.inputs.data.sha256_file", again)
    assert checking(tmp_path / "plan.json") == []


def test_inputs_that_were_found_whole_are_not_read_again(
    draft: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(document: PlanDocument) -> Inputs:
        raise AssertionError(f"{document.path} names other inputs")

    known: set[str] = set()
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert freezing(draft, first) == []
    assert freezing(draft | {"seed": 7}, second) == []
    hashes = [json.loads(path.read_text())[FROZEN] for path in (first, second)]
    paths = frozen_paths(first, expected=hashes[0], known=known)
    monkeypatch.setattr("explicit_learning.inputs.frozen.read_frozen_inputs", again)
    assert frozen_paths(second, expected=hashes[1], known=known) == paths
    with pytest.raises(Refusal, match=hashes[0]):
        frozen_paths(second, expected=hashes[0], known=known)
    with pytest.raises(AssertionError, match="names other inputs"):
        frozen_paths(frozen_again(second, model={"attn_implementation": "eager"}), expected=hashes[1], known=known)


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


def test_a_terminal_token_that_the_tokenizer_does_not_name_is_frozen_with_the_others(
    draft: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    change_json(model / "generation_config.json", eos_token_id=[376, 377, 380])
    out = tmp_path / "plan.json"
    assert freezing(draft, out) == []
    assert json.loads(out.read_text())["generation"]["terminal_token_ids"] == [376, 377, 380]


def test_terminal_tokens_are_those_of_the_model(draft: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert freezing(draft, out) == []
    (fault,) = checking(frozen_again(out, generation={"terminal_token_ids": [377]}))
    assert place(fault) == ("plan.json", "/generation/terminal_token_ids")
    assert (fault.found, fault.expected) == ("[377]", "[376, 377], the model's end-of-sequence tokens")


# --- the adapter's shape ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lora", "told"),
    [
        ({"rank": 8}, ("/r", "16", "8, the plan's lora.rank")),
        ({"alpha": 8}, ("/lora_alpha", "32", "8, the plan's lora.alpha")),
    ],
)
def test_an_adapter_of_another_rank_or_scale_is_refused_when_frozen_and_when_checked(
    draft: dict[str, Any], tmp_path: Path, lora: dict[str, Any], told: tuple[str, str, str]
) -> None:
    out = tmp_path / "plan.json"
    assert freezing(draft, out) == []
    (fault,) = checking(frozen_again(out, lora=lora))
    assert place(fault)[0] == "adapter_config.json"
    assert (fault.pointer, fault.found, fault.expected) == told
    draft["lora"] |= lora
    assert freezing(draft, tmp_path / "another.json") == [fault]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"use_dora": True}, "/use_dora"),
        ({"use_rslora": True}, "/use_rslora"),
        ({"modules_to_save": ["embed_tokens"]}, "/modules_to_save"),
        ({"rank_pattern": {"q_proj": 4}}, "/rank_pattern"),
        ({"lora_bias": True}, "/lora_bias"),
        ({"bias": "all"}, "/bias"),
        ({"task_type": None}, "/task_type"),
        ({"peft_type": "LOHA"}, "/peft_type"),
        ({"init_lora_weights": "pissa"}, "/init_lora_weights"),
        ({"a_variant_of_tomorrow": {"on": True}}, "/a_variant_of_tomorrow"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(
    draft: dict[str, Any], demo_adapter: Path, tmp_path: Path, change: dict[str, Any], pointer: str
) -> None:
    change_json(demo_adapter / "adapter_config.json", **change)
    (fault,) = freezing(draft, tmp_path / "plan.json")
    assert place(fault) == ("adapter_config.json", pointer)
    assert fault.found == json.dumps(next(iter(change.values())))


def test_what_says_nothing_about_the_shape_is_not_compared(
    draft: dict[str, Any], demo_adapter: Path, tmp_path: Path
) -> None:
    change_json(
        demo_adapter / "adapter_config.json",
        base_model_name_or_path="/somewhere/else",
        lora_dropout=0.1,
        peft_version="0.99",
        target_modules="all-linear",
        a_variant_of_tomorrow=False,
    )
    assert freezing(draft, tmp_path / "plan.json") == []


@pytest.mark.parametrize(("lora", "rank"), [({}, "16"), ({"rank": 8, "alpha": 8}, "8")])
def test_a_field_that_is_left_out_is_not_taken_for_the_planned_value(
    draft: dict[str, Any], demo_adapter: Path, tmp_path: Path, lora: dict[str, Any], rank: str
) -> None:
    # peft's own defaults of r and lora_alpha are 8
    (demo_adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "task_type": "CAUSAL_LM"}')
    draft["lora"] |= lora
    found = freezing(draft, tmp_path / "plan.json")
    assert [fault.pointer for fault in found] == ["/r", "/lora_alpha", "/bias"]
    assert {fault.found for fault in found} == {"nothing: the field is missing"}
    assert found[0].expected == f"{rank}, the plan's lora.rank"


def test_an_adapter_on_other_modules_is_refused(draft: dict[str, Any], tmp_path: Path) -> None:
    first = "base_model.model.model.language_model.layers.0.linear_attn.in_proj_a.lora_A.weight"
    for lora, count in (
        ({"target_modules": ["q_proj", "v_proj"]}, 8),
        ({"exclude_modules": ["lm_head", "in_proj_a"]}, 62),
    ):
        (fault,) = freezing(draft | {"lora": draft["lora"] | lora}, tmp_path / "plan.json")
        assert place(fault) == ("adapter_model.safetensors", f"/{first}")
        assert fault.found == f"64 tensors; {first} has shape [16, 96]"
        assert fault.expected == f"{count} tensors; {first} is not one of them"


def test_an_adapter_of_another_model_is_refused(draft: dict[str, Any], demo_adapter: Path, tmp_path: Path) -> None:
    name = "base_model.model.model.language_model.layers.1.mlp.up_proj.lora_B.weight"
    rewrite_header(demo_adapter / "adapter_model.safetensors", lambda header: header[name].update(shape=[96, 32]))
    (fault,) = freezing(draft, tmp_path / "plan.json")
    assert fault.found == f"64 tensors; {name} has shape [96, 32]"
    assert fault.expected == f"64 tensors; {name} has shape [192, 16]"


@pytest.mark.parametrize(
    ("lora", "pointer", "found"),
    [
        ({"target_modules": ["q_proj", "q_prj"]}, "/lora/target_modules", '["q_prj"], which matches no linear module'),
        ({"exclude_modules": ["lm_head", "vision"]}, "/lora/exclude_modules", '["vision"], which matches no linear'),
        ({"exclude_modules": [".*visual.*"]}, "/lora/exclude_modules", '[".*visual.*"], which matches no linear'),
        ({"exclude_modules": ["model.vis"]}, "/lora/exclude_modules", '["model.vis"], which matches no linear'),
        ({"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}, "/lora", "no module is left to train"),
    ],
)
def test_modules_that_the_model_does_not_have_are_refused(
    draft: dict[str, Any], tmp_path: Path, lora: dict[str, Any], pointer: str, found: str
) -> None:
    out = tmp_path / "plan.json"
    assert freezing(draft, out) == []
    (fault,) = checking(frozen_again(out, lora=lora))
    assert place(fault) == ("plan.json", pointer)
    assert fault.found.startswith(found)
    (fault,) = freezing(draft | {"lora": draft["lora"] | lora}, tmp_path / "another.json")
    assert (fault.file, fault.pointer) == (str(RL), pointer)
    assert fault.found.startswith(found)
    assert pointer == "/lora" or "model.visual" in fault.expected


def test_linear_modules_are_the_matrices_that_an_adapter_can_be_put_on(model: Path) -> None:
    known = linear_modules(model)
    assert known["model.language_model.layers.1.mlp.up_proj"] == (192, 96)
    assert known["lm_head"] == (448, 96)
    assert not [name for name in known if "embed" in name or "conv" in name or "norm" in name]


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
