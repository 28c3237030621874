"""Which functions the model's gated-delta layers call."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.training import kernels
from explicit_learning.training.kernels import (
    LAYER_FUNCTIONS,
    MODEL_MODULE,
    bind_layer_functions,
    bound_layer_functions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.training


@pytest.fixture(autouse=True)
def bound_again() -> Iterator[None]:
    yield
    bind_layer_functions("cpu")


def test_on_a_cpu_all_are_torch_functions_of_the_model() -> None:
    bind_layer_functions("cpu")
    assert bound_layer_functions() == {
        "causal_conv1d_fn": f"{MODEL_MODULE}.causal_conv1d_fn",
        "causal_conv1d_update": f"{MODEL_MODULE}.causal_conv1d_update",
        "chunk_gated_delta_rule": f"{MODEL_MODULE}.torch_chunk_gated_delta_rule",
        "fused_recurrent_gated_delta_rule": f"{MODEL_MODULE}.torch_recurrent_gated_delta_rule",
    }


def test_choosing_for_a_cpu_imports_no_compiled_package() -> None:
    program = (
        "import sys\nfrom explicit_learning.training.kernels import bind_layer_functions\n"
        "bind_layer_functions('cpu')\nprint(sorted({'fla', 'causal_conv1d'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_on_a_gpu_what_cannot_be_imported_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in LAYER_FUNCTIONS:
        monkeypatch.setitem(sys.modules, part.module, None)
    with pytest.raises(Refusal) as caught:
        bind_layer_functions("cuda")
    assert [fault.found.partition(" ")[0] for fault in caught.value.faults] == [
        f"{part.module}.{part.compiled}" for part in LAYER_FUNCTIONS
    ]
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_on_a_gpu_the_model_calls_the_compiled_functions_with_the_arguments_they_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    for part in LAYER_FUNCTIONS:

        def compiled(*args: Any, activation: Any = None, name: str = part.compiled) -> None:
            calls.append((name, {"args": args, "activation": activation}))

        module = sys.modules.get(part.module)
        if not isinstance(module, ModuleType) or not hasattr(module, "made_by_test"):
            module = ModuleType(part.module)
            module.made_by_test = True  # type: ignore[attr-defined] # a mark of this test
            monkeypatch.setitem(sys.modules, part.module, module)
        setattr(module, part.compiled, compiled)
    bind_layer_functions("cuda")
    model = sys.modules[MODEL_MODULE]
    for part in LAYER_FUNCTIONS:
        getattr(model, part.name)(1, 2, activation="silu", cu_seqlens=None)
    assert calls == [(part.compiled, {"args": (1, 2), "activation": "silu"}) for part in LAYER_FUNCTIONS]


@pytest.mark.parametrize(
    ("accelerator", "strict", "calls"),
    [
        ("cuda", True, ["bind cuda", "pin 9.0"]),
        ("cuda", False, ["bind cuda"]),
        ("cpu", True, ["bind cpu"]),
    ],
)
def test_kernels_are_pinned_after_they_are_bound_under_strict_on_a_gpu(
    accelerator: str, strict: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(kernels, "bind_layer_functions", lambda name: done.append(f"bind {name}"))
    monkeypatch.setattr(kernels, "pin_configurations", lambda capability: done.append(f"pin {capability}"))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    kernels.prepare_layer_functions(accelerator, strict=strict)
    assert done == calls
