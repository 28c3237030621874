"""Merged weights do what base model and adapter do, whatever the adapter is on and however the model is stored."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.export.model_files import copy_model_files, stored_type, unmergeable_faults, write_merged_config
from explicit_learning.model_files.adapter_names import adapted_modules, matrix_name
from explicit_learning.model_files.headers import safetensors_header
from explicit_learning.model_files.parts import part_of
from explicit_learning.model_files.weights import weights_by_name
from explicit_learning.rundir.export_record import LOGIT_TOLERANCE
from tests.export.conftest import SCALE
from tests.support.plans import MODEL

if TYPE_CHECKING:
    from pathlib import Path

    from tests.export.conftest import MakeAdapter

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def merge(model: Path, adapter: Path, out: Path, dtype: str | None) -> Path:
    from explicit_learning.export.merging import merge_weights

    out.mkdir()
    copy_model_files(model, out)
    write_merged_config(model, out, dtype)
    merge_weights(model, adapter, out, scale=SCALE, dtype=dtype)
    return out


def logits(model: Any) -> Any:
    """Return what a model says to a prompt with one image, at every position."""
    import numpy as np
    import torch
    from PIL import Image
    from transformers import AutoProcessor

    processor: Any = AutoProcessor.from_pretrained(str(MODEL), local_files_only=True)
    y, x = np.indices((64, 64))
    image = Image.fromarray(np.stack([4 * x, 4 * y, x ^ y], axis=-1).astype(np.uint8))
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which digit?"}]}]
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    with torch.no_grad():
        return model.eval()(**processor(text=[text], images=[[image]], return_tensors="pt")).logits.float()


def plain(folder: Path, dtype: str) -> Any:
    """Load a folder as any user of transformers does."""
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(str(folder), dtype=dtype, local_files_only=True)


def with_adapter(adapter: Path, modules: list[str]) -> Any:
    """Return base model and adapter through PEFT, in float32."""
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    config = LoraConfig(r=4, lora_alpha=8, target_modules=modules, task_type="CAUSAL_LM")
    model = get_peft_model(plain(MODEL, "float32"), config)
    set_peft_model_state_dict(model, load_file(adapter))
    return model


@pytest.mark.parametrize("parts", [("language",), ("vision",), ("merger",), ("language", "vision", "merger")])
def test_float32_weights_say_what_base_model_and_adapter_say(
    tmp_path: Path, make_adapter: MakeAdapter, parts: tuple[str, ...]
) -> None:
    adapter = make_adapter(*parts)
    modules = adapted_modules(safetensors_header(adapter))
    assert {part_of(module) for module in modules} == set(parts)
    assert unmergeable_faults(MODEL, modules) == []
    out = merge(MODEL, adapter, tmp_path / "out", "float32")
    before, after, base = (
        logits(with_adapter(adapter, modules)),
        logits(plain(out, "auto")),
        logits(plain(MODEL, "float32")),
    )
    assert float((before - base).abs().max()) > 100 * LOGIT_TOLERANCE
    assert float((before - after).abs().max()) <= LOGIT_TOLERANCE
    assert json.loads((out / "config.json").read_text())["dtype"] == stored_type(out) == "float32"


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_each_matrix_is_rounded_once_and_all_else_keeps_its_bytes(
    tmp_path: Path, make_adapter: MakeAdapter, dtype: str | None
) -> None:
    import torch
    from safetensors.torch import load_file

    adapter = make_adapter("language")
    out = merge(MODEL, adapter, tmp_path / "out", dtype)
    tensors, base = load_file(adapter), load_file(MODEL / "model.safetensors")
    merged = load_file(out / "model.safetensors")
    changed = {f"{module}.weight" for module in adapted_modules(tensors)}
    assert list(merged) == list(base)
    assert stored_type(out) == "bfloat16"
    for name, tensor in base.items():
        assert merged[name].dtype == tensor.dtype == torch.bfloat16
        if name in changed:
            module = name.removesuffix(".weight")
            update = SCALE * tensors[matrix_name(module, "B")] @ tensors[matrix_name(module, "A")]
            exact = tensor.float() + update
            assert torch.allclose(merged[name].float(), exact, rtol=2**-8, atol=1e-7), name
            assert not torch.equal(merged[name], tensor)
        else:
            assert torch.equal(merged[name], tensor), name


def test_a_model_in_shards_stays_one_in_the_same_shards(
    tmp_path: Path, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from explicit_learning.export import merging

    adapter, sharded = make_adapter("language", "merger"), tmp_path / "sharded"
    plain(MODEL, "bfloat16").save_pretrained(sharded, max_shard_size="300KB")
    for name in ("tokenizer.json", "tokenizer_config.json", "processor_config.json", "chat_template.jinja"):
        shutil.copyfile(MODEL / name, sharded / name)
    whole = merge(MODEL, adapter, tmp_path / "whole", "float32")
    monkeypatch.setattr(merging, "ROW_BYTES", 4096)  # a few rows at a time
    out = merge(sharded, adapter, tmp_path / "out", "float32")
    shards = sorted(path.name for path in sharded.glob("*.safetensors"))
    assert len(shards) > 2
    assert sorted(path.name for path in out.glob("*.safetensors")) == shards
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    stored = sum(stop - start for start, stop in (e["data_offsets"] for e in weights_by_name(out).values()))
    assert index["metadata"]["total_size"] == stored
    assert float((logits(plain(out, "auto")) - logits(plain(whole, "auto"))).abs().max()) <= LOGIT_TOLERANCE


def test_what_cannot_be_merged_is_named() -> None:
    modules = ["lm_head", "model.language_model.layers.0.mlp.up_proj", "model.visual.patch_embed.proj"]
    (fault,) = unmergeable_faults(MODEL, modules)
    assert fault.found == "an adapter on lm_head, model.visual.patch_embed.proj"
