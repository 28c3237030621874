"""Model, adapter and prompt that a plan or draft names: what a rank would refuse is refused when frozen and checked."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file, snapshot_sha256
from explicit_learning.inputs.base_model import read_base_model
from explicit_learning.inputs.frozen import frozen_paths
from explicit_learning.inputs.initial_adapter import read_initial_adapter
from explicit_learning.inputs.named import read_system_prompt
from explicit_learning.model_files.folders import adapter_sha256
from explicit_learning.model_files.weights import linear_modules, weighted_modules
from explicit_learning.plan.reading import FROZEN
from tests.support.named_inputs import RL, change_json, checking, freezing, frozen_again, place, rewrite_header

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.inputs.named import Inputs
    from explicit_learning.plan.reading import PlanDocument


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
        # A lookup is not a linear module: neither trainer nor vLLM would give the embedding an adapter.
        ({"target_modules": ["embed_tokens"]}, "/lora/target_modules", '["embed_tokens"], which matches no linear'),
        ({"exclude_modules": ["lm_head", "towers"]}, "/lora/exclude_modules", '["towers"], which matches no linear'),
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


def test_modules_with_weights_are_the_innermost_ones_that_are_loaded(model: Path, tmp_path: Path) -> None:
    known = weighted_modules(model)
    assert set(linear_modules(model)) < set(known)
    assert "model.visual.patch_embed.proj" in known
    assert "model.language_model.layers.0.linear_attn.conv1d" in known
    assert "model.language_model.layers.0.linear_attn" not in known, "it has weights, and modules that have some"
    folder = tmp_path / "released"
    folder.mkdir()
    names = ("model.language_model.embed_tokens.weight", "model.language_model.norm.weight", "mtp.norm.weight")
    header = {name: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * i, 2 * i + 2]} for i, name in enumerate(names)}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(2 * len(names)))
    assert weighted_modules(folder) == ["lm_head", "model.language_model.embed_tokens", "model.language_model.norm"]
