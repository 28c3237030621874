"""What an engine computes with against an adapter's file, with modules that are joined and split as vLLM does it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    import torch

pytestmark = pytest.mark.training

ATTENTION = "model.language_model.layers.0.self_attn"
RANK, ROOM, WIDTH = 2, 4, 3


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Query and value have an adapter, key has none; the tower's joined module and an output have one."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    shapes = {f"{ATTENTION}.q_proj": 4, f"{ATTENTION}.v_proj": 2, f"{ATTENTION}.o_proj": 3}
    shapes["model.visual.blocks.0.attn.qkv"] = 6
    tensors = {}
    for name, rows in shapes.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, WIDTH, generator=generator)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(rows, RANK, generator=generator)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": 8}))
    return tmp_path


def stacked(a: torch.Tensor | None, b: torch.Tensor | None, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return matrices as an engine reserves them: room for a higher rank, and B times alpha / rank."""
    import torch

    room_a, room_b = torch.zeros(1, 1, ROOM, WIDTH), torch.zeros(1, 1, rows, ROOM)
    if a is not None and b is not None:
        room_a[0, 0, :RANK] = a.bfloat16()
        room_b[0, 0, :, :RANK] = b.bfloat16() * 4
    return room_a.bfloat16(), room_b.bfloat16()


def engine(adapter: Path) -> Any:
    from safetensors.torch import load_file

    tensors = load_file(adapter / "adapter_model.safetensors")

    def pair(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(tensors[f"base_model.model.{name}.lora_{matrix}.weight"] for matrix in "AB")  # type: ignore[return-value] # two of them

    q, v, o = (pair(f"{ATTENTION}.{name}") for name in ("q_proj", "v_proj", "o_proj"))
    joined = pair("model.visual.blocks.0.attn.qkv")
    parts = {
        "language_model.model.layers.0.self_attn.qkv_proj": [
            stacked(*q, 4),
            stacked(None, None, 2),
            stacked(*v, 2),
        ],
        "language_model.model.layers.0.self_attn.o_proj": [stacked(*o, 3)],
        # One module of the file in three slices.
        "visual.blocks.0.attn.qkv": [stacked(joined[0], joined[1][rows : rows + 2], 2) for rows in (0, 2, 4)],
    }
    modules = {
        name: SimpleNamespace(lora_a_stacked=[a for a, _ in pairs], lora_b_stacked=[b for _, b in pairs])
        for name, pairs in parts.items()
    }
    return SimpleNamespace(
        named_modules=lambda: [("", object()), *modules.items()],
        packed_modules_mapping={"qkv_proj": ["q_proj", "k_proj", "v_proj"]},
        modules=modules,
    )


def test_what_was_loaded_has_no_fault(adapter: Path) -> None:
    from explicit_learning.training.rollouts.read_back import adapter_faults

    assert adapter_faults(engine(adapter), adapter) == []


@pytest.mark.parametrize("matrix", ["lora_a_stacked", "lora_b_stacked"])
def test_each_number_counts(adapter: Path, matrix: str) -> None:
    from explicit_learning.training.rollouts.read_back import adapter_faults

    model = engine(adapter)
    for name, module in model.modules.items():
        for part in getattr(module, matrix):
            flat = part.view(-1)
            for place in range(flat.numel()):
                kept = flat[place].clone()
                flat[place] += 1
                assert adapter_faults(model, adapter) == [name], (name, place)
                flat[place] = kept
    assert adapter_faults(model, adapter) == []


def test_a_module_that_the_engine_lacks_and_slices_in_another_order_are_named(adapter: Path) -> None:
    from explicit_learning.training.rollouts.read_back import adapter_faults

    model = engine(adapter)
    tower = model.modules["visual.blocks.0.attn.qkv"]
    tower.lora_b_stacked.reverse()
    assert adapter_faults(model, adapter) == ["visual.blocks.0.attn.qkv"]
    without = SimpleNamespace(
        named_modules=lambda: [each for each in model.modules.items() if "o_proj" not in each[0]],
        packed_modules_mapping=model.packed_modules_mapping,
    )
    assert "language_model.model.layers.0.self_attn.o_proj" in adapter_faults(without, adapter)
