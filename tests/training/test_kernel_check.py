"""The comparison of the functions that layers call with torch's own, as far as a CPU reaches."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.rundir.rank_report import KernelCheck
from explicit_learning.training.kernel_check import (
    GRADIENT_TOLERANCE,
    TOLERANCE,
    check_kernels,
    require_equal_kernels,
)
from explicit_learning.training.kernels import MODEL_MODULE, bind_layer_functions

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.training
CPU = torch.device("cpu")
NAMES = [
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "causal_conv1d_fn",
    "causal_conv1d_update",
]


@pytest.fixture(autouse=True)
def bound() -> Iterator[None]:
    bind_layer_functions("cpu")
    yield
    bind_layer_functions("cpu")


@pytest.fixture(scope="module")
def config() -> Any:
    """Head sizes of Qwen3.5-2B (config.json, text_config)."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

    return Qwen3_5TextConfig(
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_torchs_functions_in_bfloat16_are_within_the_tolerance(config: Any, attention: str) -> None:
    checks = check_kernels(config, attention=attention, dtype=torch.bfloat16, device=CPU)
    assert [check.name for check in checks] == [*NAMES, f"attention ({attention})", "float32_log_probs"]
    assert [check.backward is not None for check in checks] == [True, False, True, False, True, True]
    for check in checks:
        assert 0 < check.forward <= TOLERANCE, check
        assert check.backward is None or 0 < check.backward <= GRADIENT_TOLERANCE, check
    require_equal_kernels(checks)


def test_in_float32_they_are_equal(config: Any) -> None:
    checks = check_kernels(config, attention="eager", dtype=torch.float32, device=CPU)
    *layers, head = checks
    assert {(check.forward, check.backward) for check in layers} <= {(0.0, 0.0), (0.0, None)}
    assert head.forward < 1e-6
    assert head.backward is not None
    assert head.backward < 1e-6


def test_functions_get_tensors_in_the_layout_that_the_layer_gives_them(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import DynamicCache
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    layouts: dict[str, set[tuple[bool, ...]]] = {name: set() for name in NAMES}
    for name in NAMES:
        function = getattr(sys.modules[MODEL_MODULE], name)

        def noted(first: Any, *args: Any, name: str = name, function: Any = function, **kwargs: Any) -> Any:
            sizes = [size for size in first.shape if size > 1]
            strides = [stride for size, stride in zip(first.shape, first.stride(), strict=True) if size > 1]
            layouts[name].add(tuple(one > other for one, other in itertools.pairwise(strides)) if sizes else ())
            return function(first, *args, **kwargs)

        noted.implementation, noted.torch_function = function.implementation, function.torch_function  # type: ignore[attr-defined] # as the binding marks its functions
        monkeypatch.setattr(sys.modules[MODEL_MODULE], name, noted)
    check_kernels(config, attention="eager", dtype=torch.float32, device=CPU)
    checked = {name: set(found) for name, found in layouts.items()}
    sizes = Qwen3_5TextConfig(hidden_size=32, num_hidden_layers=1, layer_types=["linear_attention"])
    layer, cache = Qwen3_5GatedDeltaNet(sizes, 0), DynamicCache(config=sizes)
    with torch.no_grad():
        layer(torch.randn(2, 5, 32), cache_params=cache)
        layer(torch.randn(2, 1, 32), cache_params=cache)
    assert layouts == checked


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_computes_something_else_is_found_by_name(
    config: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = getattr(sys.modules[MODEL_MODULE], name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return (result[0] * 1.1, result[1]) if isinstance(result, tuple) else result * 1.1

    wrong.implementation, wrong.torch_function = wrong, function.torch_function  # type: ignore[attr-defined] # as the binding marks its functions
    monkeypatch.setattr(sys.modules[MODEL_MODULE], name, wrong)
    checks = check_kernels(config, attention="eager", dtype=torch.float32, device=CPU)
    with pytest.raises(Refusal) as caught:
        require_equal_kernels(checks)
    assert {fault.found.partition(":")[0] for fault in caught.value.faults} == {"wrong"}
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_a_wrong_gradient_alone_is_found(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch_chunk_gated_delta_rule"
    function = getattr(sys.modules[MODEL_MODULE], name)

    def wrong(query: Any, *args: Any, **kwargs: Any) -> Any:
        return function(query.detach() + 0 * query, *args, **kwargs)

    wrong.implementation, wrong.torch_function = wrong, function.torch_function  # type: ignore[attr-defined] # as the binding marks its functions
    monkeypatch.setattr(sys.modules[MODEL_MODULE], name, wrong)
    first = check_kernels(config, attention="eager", dtype=torch.float32, device=CPU)[0]
    assert first == KernelCheck(name="wrong", forward=0.0, backward=1.0)


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(Refusal, match="its gradient differs from torch's by nan of its size"):
        require_equal_kernels([KernelCheck(name="kernel", forward=0.0, backward=float("nan"))])


def test_the_grade_of_determinism_is_as_before(config: Any) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        check_kernels(config, attention="eager", dtype=torch.float32, device=CPU)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
