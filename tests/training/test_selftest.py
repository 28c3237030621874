"""What `el selftest` measures in processes of their own, as far as it needs no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from explicit_learning.files.resources import ASSETS
from explicit_learning.training import kernel_check, kernels, selftest

pytestmark = pytest.mark.training
MODEL = ASSETS / "tiny-vlm" / "model"


def test_kernels_on_a_gpu_are_compared_as_a_strict_run_prepares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def check(_config: Any, *, attention: str, dtype: torch.dtype, device: torch.device) -> tuple[()]:
        assert (dtype, device) == (torch.bfloat16, torch.device("cuda"))
        done.append(f"check {attention}")
        return ()

    monkeypatch.setattr("explicit_learning.training.determinism.apply_determinism", done.append)
    monkeypatch.setattr(kernels, "bind_layer_functions", lambda accelerator: done.append(f"bind {accelerator}"))
    monkeypatch.setattr(kernels, "pin_configurations", lambda capability: done.append(f"pin {capability}"))
    monkeypatch.setattr(kernels, "bound_layer_functions", dict)
    monkeypatch.setattr(kernel_check, "check_kernels", check)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    selftest.kernels("cuda", str(MODEL))
    assert done == ["strict", "bind cuda", "pin 9.0", "check sdpa", "check flash_attention_2"]
