"""Compiled kernels against torch's own functions on this GPU, before anything is trained.

A kernel that was compiled for another GPU, by another compiler or with a defect can compute something else without an
error: flash-linear-attention's gated-delta backward gave wrong gradients on Hopper with Triton 3.4 to 3.7.0
(flash-linear-attention#640). So each function that the model's layers call is compared with torch's, on the same small
random inputs: the bound one in the model's type, torch's in float32.
"""

from __future__ import annotations

import copy
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.rundir.rank_report import KernelCheck
from explicit_learning.training.float32_head import float32_log_probs
from explicit_learning.training.kernels import MODEL_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

__all__ = ["GRADIENT_TOLERANCE", "TOLERANCE", "check_kernels", "require_equal_kernels"]

CONTEXT = Context(gate="kernels", exit_code=ExitCode.ENVIRONMENT)
# Largest difference of a result, relative to the size of torch's: five times bfloat16's unit roundoff, 2**-8.
TOLERANCE = 5 * 2.0**-8
# The same for a gradient. Those of decay and beta are sums of terms that cancel, rounded to bfloat16 between kernels.
GRADIENT_TOLERANCE = 0.05
# Two whole chunks of the gated-delta rule (64 tokens each) and a part of one.
ROWS, TOKENS, HEADS, CHANNELS = 2, 130, 2, 48
# Tokens of the second row that are padding, and rows of a small output layer.
PADDING, VOCABULARY = 30, 1000
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of a function that the model's module calls by a global name.

    Attributes:
        name: That name.
        tensors: Positional tensors, which are given in the model's type.
        named: Tensors by keyword, which are given in the model's type.
        float32: Tensors by keyword that the model computes in float32 too.
        options: The other keywords.
        trains: Whether the model computes gradients through it; if not, it only decodes.
    """

    name: str
    tensors: list[Tensor]
    named: dict[str, Tensor] = field(default_factory=dict)
    float32: dict[str, Tensor] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    trains: bool


def check_kernels(config: Any, *, attention: str, dtype: torch.dtype, device: torch.device) -> tuple[KernelCheck, ...]:
    """Compare every function that was bound for the model's layers, and its attention, with torch's in float32.

    Args:
        config: The text part of the model's configuration, for the sizes of heads.
        attention: The attention implementation that the plan names.
        dtype: The type that the model computes in.
        device: Where it computes.
    """
    generator = torch.Generator().manual_seed(SEED)
    checks = []
    for call in _calls(config, generator):
        bound = getattr(sys.modules[MODEL_MODULE], call.name)
        found = _results(bound, call, dtype, device, given=dtype)
        with _any_algorithm():
            expected = _results(bound.torch_function, call, torch.float32, device, given=dtype)
        checks.append(_compared(bound.implementation.__name__, found, expected))
    checks.append(_attention_check(config, attention, dtype, device, generator))
    return (*checks, _head_check(dtype, device, generator))


@contextmanager
def _any_algorithm() -> Iterator[None]:
    """Allow operations without a deterministic kernel: torch's gated-delta loop has one on GPUs, a sum along a row.

    What the run itself calls is compared under the run's own grade, which decides about some of its kernels.
    """
    enabled, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(mode=False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def require_equal_kernels(checks: Sequence[KernelCheck]) -> None:
    """Refuse to train with kernels that compute something else than torch.

    Raises:
        Refusal: With every kernel whose result or gradient differs by more than the tolerance, or is not finite.
    """
    faults = [
        CONTEXT.fault(
            found=f"{check.name}: its {what} differs from torch's by {error:.2g} of its size",
            expected=f"at most {limit:.2g}",
            fix="run in an image of an unchanged lock whose kernels were compiled for this GPU "
            "(COMPUTE_CAPABILITIES); `el selftest --gpu` shows more",
        )
        for check in checks
        for what, error, limit in (
            ("result", check.forward, TOLERANCE),
            ("gradient", check.backward, GRADIENT_TOLERANCE),
        )
        if error is not None and not error <= limit
    ]
    if faults:
        raise Refusal(faults)


def _calls(config: Any, generator: torch.Generator) -> list[_Call]:
    key, value, width = config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def delta(tokens: int) -> dict[str, Any]:
        return {
            "tensors": [
                draw(ROWS, tokens, HEADS, key),
                draw(ROWS, tokens, HEADS, key),
                draw(ROWS, tokens, HEADS, value),
            ],
            "named": {"beta": draw(ROWS, tokens, HEADS).sigmoid()},
            "float32": {"g": -torch.nn.functional.softplus(draw(ROWS, tokens, HEADS))},
        }

    options = {"output_final_state": False, "use_qk_l2norm_in_kernel": True}
    decoding = delta(1)
    decoding["float32"]["initial_state"] = draw(ROWS, HEADS, key, value)
    kernel, activation = draw(CHANNELS, width), {"activation": config.hidden_act}
    return [
        _Call(name="torch_chunk_gated_delta_rule", **delta(TOKENS), options=options, trains=True),
        _Call(name="torch_recurrent_gated_delta_rule", **decoding, options=options, trains=False),
        # The layer transposes what its projection gives, and causal-conv1d has kernels of its own for that layout.
        _Call(
            name="causal_conv1d_fn",
            tensors=[draw(ROWS, TOKENS, CHANNELS).transpose(1, 2), kernel],
            options=activation,
            trains=True,
        ),
        _Call(
            name="causal_conv1d_update",
            tensors=[draw(ROWS, 1, CHANNELS).transpose(1, 2), draw(ROWS, CHANNELS, width), kernel],
            options=activation,
            trains=False,
        ),
    ]


def _results(
    function: Callable[..., Any], call: _Call, dtype: torch.dtype, device: torch.device, *, given: torch.dtype
) -> list[Tensor]:
    """Return a call's result and, if the model trains through it, its gradients, in float32.

    Args:
        function: What is called.
        call: With what.
        dtype: The type that it computes in.
        device: Where.
        given: The type that the inputs are rounded to before, so that both functions get the same values.
    """

    def prepared(tensor: Tensor, *types: torch.dtype) -> Tensor:
        for kind in types:
            tensor = tensor.to(kind)
        return tensor.to(device).detach().clone().requires_grad_(call.trains)

    tensors = [prepared(tensor, given, dtype) for tensor in call.tensors]
    named = {name: prepared(tensor, given, dtype) for name, tensor in call.named.items()}
    named |= {name: prepared(tensor, torch.float32) for name, tensor in call.float32.items()}
    with torch.set_grad_enabled(call.trains):
        result = function(*tensors, **named, **call.options)
        output: Tensor = result[0] if isinstance(result, tuple) else result
    gradients = _gradients(output, [*tensors, *named.values()]) if call.trains else ()
    return [output.detach(), *gradients]


def _gradients(output: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of a weighted sum of the output; the weights are the same for every function."""
    weights = torch.linspace(-1, 1, output.numel(), device=output.device).cos().view(output.shape)
    return torch.autograd.grad((output.float() * weights).sum(), inputs)


def _compared(name: str, found: list[Tensor], expected: list[Tensor]) -> KernelCheck:
    errors = [
        float((one.double() - other.double()).norm() / other.double().norm())
        for one, other in zip(found, expected, strict=True)
    ]
    return KernelCheck(name=name, forward=errors[0], backward=max(errors[1:]) if errors[1:] else None)


def _attention_check(
    config: Any, attention: str, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> KernelCheck:
    """Compare one attention layer of the model's sizes with the same layer in float32 and plain torch."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Attention

    def layer(name: str, kind: torch.dtype) -> Any:
        sizes = copy.deepcopy(config)
        sizes.hidden_size, sizes._attn_implementation = CHANNELS, name  # noqa: SLF001 - how transformers names it
        return Qwen3_5Attention(sizes, 0).to(device, kind)

    first, second = layer(attention, dtype), layer("eager", torch.float32)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / CHANNELS**0.5)
    second.load_state_dict(first.state_dict())
    hidden = torch.randn((ROWS, TOKENS, CHANNELS), generator=generator).to(dtype)
    angles = torch.randn((ROWS, TOKENS, config.head_dim // 4), generator=generator).to(dtype)
    valid = torch.ones((ROWS, TOKENS), dtype=torch.long, device=device)
    valid[1, -PADDING:] = 0
    hidden_from = torch.ones((TOKENS, TOKENS), dtype=torch.bool, device=device).triu(1) | (valid == 0)[:, None, None]
    mask = torch.zeros(hidden_from.shape, device=device).masked_fill(hidden_from, -torch.inf)
    results = []
    for each, kind, name in ((first, dtype, attention), (second, torch.float32, "eager")):
        own_hidden = hidden.to(device, kind).requires_grad_()
        positions = angles.to(device, kind)
        shown = valid if "flash" in name else mask.to(kind)
        output = each(own_hidden, (positions.cos(), positions.sin()), shown)[0] * valid[..., None]
        results.append([output.detach(), *_gradients(output, [own_hidden, *each.parameters()])])
    return _compared(f"attention ({attention})", results[0], results[1])


def _head_check(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> KernelCheck:
    """Compare log-probs of tokens, as the trainers compute them, with those of whole logits in float32."""
    hidden = torch.randn((ROWS, TOKENS, CHANNELS), generator=generator).to(device, dtype)
    weight = torch.randn((VOCABULARY, CHANNELS), generator=generator).to(device, dtype)
    ids = torch.randint(VOCABULARY, (ROWS, TOKENS), generator=generator).to(device)
    own, exact = hidden.clone().requires_grad_(), hidden.float().requires_grad_()
    found = float32_log_probs(own, weight, ids)
    expected = (exact @ weight.float().t()).log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
    return _compared(
        "float32_log_probs",
        [found.detach(), *_gradients(found, [own])],
        [expected.detach(), *_gradients(expected, [exact])],
    )
