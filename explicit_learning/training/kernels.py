"""Which functions compute Qwen3.5's gated-delta layers, chosen here and recorded.

transformers 5.17 takes the compiled functions of flash-linear-attention and causal-conv1d wherever these packages can
be imported, on CPUs too, where calling them fails; on any error of an import it takes its own torch functions and does
not report it. So the kit decides: torch functions on CPUs, compiled ones on GPUs, where a package that cannot be
imported is refused.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.training.autotuning import pin_configurations

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import ModuleType

    from explicit_learning.errors import Fault

__all__ = [
    "LAYER_FUNCTIONS",
    "LayerFunction",
    "bind_layer_functions",
    "bound_layer_functions",
    "prepare_layer_functions",
]

CONTEXT = Context(gate="environment", exit_code=ExitCode.ENVIRONMENT)
MODEL_MODULE = "transformers.models.qwen3_5.modeling_qwen3_5"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFunction:
    """A function that the model's module calls by a global name, and the compiled one that takes its place.

    Attributes:
        name: The global name in the model's module.
        module: Module of the compiled function.
        compiled: Its name there.
    """

    name: str
    module: str
    compiled: str


# The globals that `Qwen3_5GatedDeltaNet.forward` of transformers 5.17 calls.
LAYER_FUNCTIONS = (
    LayerFunction(name="causal_conv1d_fn", module="causal_conv1d", compiled="causal_conv1d_fn"),
    LayerFunction(name="causal_conv1d_update", module="causal_conv1d", compiled="causal_conv1d_update"),
    LayerFunction(
        name="torch_chunk_gated_delta_rule", module="fla.ops.gated_delta_rule", compiled="chunk_gated_delta_rule"
    ),
    LayerFunction(
        name="torch_recurrent_gated_delta_rule",
        module="fla.ops.gated_delta_rule",
        compiled="fused_recurrent_gated_delta_rule",
    ),
)


def prepare_layer_functions(accelerator: str, *, strict: bool) -> None:
    """Choose the functions of the model's layers, and under ``strict`` the configurations of their kernels.

    Args:
        accelerator: ``cpu`` or ``cuda``.
        strict: Whether no kernel may be chosen by timing.

    Raises:
        Refusal: If a compiled function cannot be imported (78), or no kernel configuration is committed for this GPU
            (69).
    """
    import torch

    bind_layer_functions(accelerator)
    if strict and accelerator == "cuda":
        pin_configurations(".".join(map(str, torch.cuda.get_device_capability())))


def bind_layer_functions(accelerator: str) -> None:
    """Make the model's module call torch functions on a CPU, and compiled ones on a GPU.

    Args:
        accelerator: ``cpu`` or ``cuda``.

    Raises:
        Refusal: If a compiled function cannot be imported (78); all of them are named.
    """
    compiled = accelerator == "cuda"
    chosen = _compiled_functions() if compiled else {}
    with _unimportable(() if compiled else {part.module.partition(".")[0] for part in LAYER_FUNCTIONS}):
        model = importlib.import_module(MODEL_MODULE)
    for part in LAYER_FUNCTIONS:
        torch_function = _torch_function(model, part.name)
        setattr(model, part.name, _bound(chosen.get(part.name, torch_function), torch_function))


def bound_layer_functions() -> dict[str, str]:
    """Return where the function comes from that the model's module calls, by the name of the compiled one.

    The value is the function's module and name, as it stands bound now.

    Raises:
        RuntimeError: If `bind_layer_functions` was not called before.
    """
    model = sys.modules.get(MODEL_MODULE)
    found = {}
    for part in LAYER_FUNCTIONS:
        function: Any = getattr(getattr(model, part.name, None), "implementation", None)
        if function is None:
            raise RuntimeError(f"{part.name} of {MODEL_MODULE} was not chosen by this program")
        found[part.compiled] = f"{function.__module__}.{function.__qualname__}"
    return found


def _compiled_functions() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    faults: list[Fault] = []
    for part in LAYER_FUNCTIONS:
        try:
            found[part.name] = getattr(importlib.import_module(part.module), part.compiled)
        except Exception as error:  # noqa: BLE001 - an import of a compiled package may fail in any way
            faults.append(
                CONTEXT.fault(
                    found=f"{part.module}.{part.compiled} cannot be imported: {type(error).__name__}: {error}",
                    expected="the compiled functions of flash-linear-attention and causal-conv1d, which the image has",
                    fix="run in the image of this lock; in a checkout, install environment.lock, which compiles them",
                )
            )
    if faults:
        raise Refusal(faults)
    return found


def _torch_function(model: ModuleType, name: str) -> Callable[..., Any]:
    """Return the torch function under transformers' wrapper, or under this module's."""
    bound = getattr(model, name)
    original: Callable[..., Any] = getattr(bound, "torch_function", None) or inspect.unwrap(bound)
    return original


def _bound(function: Callable[..., Any], torch_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that drops keyword arguments that only another implementation takes, as transformers' does."""
    known = inspect.signature(function).parameters

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{name: value for name, value in kwargs.items() if name in known})

    call.implementation, call.torch_function = function, torch_function  # type: ignore[attr-defined] # functions take attributes
    return call


@contextmanager
def _unimportable(packages: Collection[str]) -> Iterator[None]:
    """Make imports of packages fail that are not imported yet: theirs takes seconds, and they warn where no GPU is."""
    blocked = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type] # None makes an import fail
    try:
        yield
    finally:
        for name in blocked:
            del sys.modules[name]
