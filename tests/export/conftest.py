"""What tests of exports share: an adapter that changes what the tiny model says, on the modules that a test names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.plans import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakeAdapter = Callable[..., Path]

SCALE = 2.0  # alpha / rank of the adapters below


@pytest.fixture
def make_adapter(tmp_path: Path) -> MakeAdapter:
    """Return what writes an adapter on the modules of some parts, drawn from a seed; it returns the file."""
    import torch
    from safetensors.torch import save_file

    from explicit_learning.model_files.adapter_names import matrix_name
    from explicit_learning.model_files.parts import part_of
    from explicit_learning.model_files.weights import HEAD, linear_modules

    def make(*parts: str, rank: int = 4) -> Path:
        drawn = torch.Generator().manual_seed(7)
        tensors = {}
        for module, (rows, columns) in linear_modules(MODEL).items():
            if module != HEAD and part_of(module) in parts:
                tensors[matrix_name(module, "A")] = torch.randn(rank, columns, generator=drawn) / columns**0.5
                tensors[matrix_name(module, "B")] = torch.randn(rows, rank, generator=drawn) / 8
        folder = tmp_path / f"adapter-{'-'.join(parts)}"
        folder.mkdir()
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder / "adapter_model.safetensors"

    return make
