"""Plans and models for tests of what memory a rank takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.rehearsal.shape import SHAPES
from explicit_learning.files.resources import ASSETS
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from tests.support.plans import plan_with

if TYPE_CHECKING:
    from pathlib import Path

TINY = ASSETS / "tiny-vlm" / "model"


def plan(**changes: Any) -> Plan:
    """Return the golden plan with an adapter of rank 16 on all linear layers; changes are by JSON pointer."""
    pointers = {name.replace("__", "/"): value for name, value in changes.items()}
    lora = {"/lora/rank": 16, "/lora/target_modules": "all-linear", "/lora/exclude_modules": ["lm_head"]}
    return from_json(Plan, plan_with({**lora, **{f"/{name}": value for name, value in pointers.items()}}))


def real_shape(folder: Path) -> Path:
    """Write a model folder of Qwen3.5-2B's shape whose weights are a hole: configuration and header are all there."""
    text, vision = SHAPES["full"].text, SHAPES["full"].vision
    kinds = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(text["num_hidden_layers"])]
    config = {
        "model_type": "qwen3_5",
        "text_config": text | {"layer_types": kinds},
        "vision_config": vision
        | {"spatial_merge_size": 2, "in_channels": 3, "patch_size": 16, "temporal_patch_size": 2},
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.language_model.embed_tokens": (text["vocab_size"], text["hidden_size"])}
    for layer, kind in enumerate(kinds):
        modules = _layer(text, full=kind == "full_attention").items()
        shapes |= {f"model.language_model.layers.{layer}.{name}": shape for name, shape in modules}
    for block in range(vision["depth"]):
        modules = _block(vision["hidden_size"], vision["intermediate_size"]).items()
        shapes |= {f"model.visual.blocks.{block}.{name}": shape for name, shape in modules}
    merged = vision["hidden_size"] * 4
    shapes |= {
        "model.visual.pos_embed": (vision["num_position_embeddings"], vision["hidden_size"]),
        "model.visual.merger.linear_fc1": (merged, merged),
        "model.visual.merger.linear_fc2": (text["hidden_size"], merged),
    }
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * shape[0] * shape[1]
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(content).to_bytes(8, "little") + content)
        stream.truncate(8 + len(content) + end)
    return folder


def _layer(text: dict[str, Any], *, full: bool) -> dict[str, tuple[int, int]]:
    """Return the matrices (out, in) of a decoder layer."""
    hidden, inner = text["hidden_size"], text["intermediate_size"]
    shapes = {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    if full:
        query = text["num_attention_heads"] * text["head_dim"]
        key = text["num_key_value_heads"] * text["head_dim"]
        outs = {"q_proj": 2 * query, "k_proj": key, "v_proj": key}
        shapes |= {f"self_attn.{name}": (out, hidden) for name, out in outs.items()}
        return shapes | {"self_attn.o_proj": (hidden, query)}
    key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    value = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    heads = text["linear_num_value_heads"]
    outs = {"in_proj_qkv": 2 * key + value, "in_proj_z": value, "in_proj_a": heads, "in_proj_b": heads}
    shapes |= {f"linear_attn.{name}": (out, hidden) for name, out in outs.items()}
    return shapes | {"linear_attn.out_proj": (hidden, value)}


def _block(hidden: int, inner: int) -> dict[str, tuple[int, int]]:
    """Return the matrices (out, in) of a block of the vision tower."""
    return {
        "attn.qkv": (3 * hidden, hidden),
        "attn.proj": (hidden, hidden),
        "mlp.linear_fc1": (inner, hidden),
        "mlp.linear_fc2": (hidden, inner),
    }
