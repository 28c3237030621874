"""The output layer in float32: nothing is rounded to the model's type."""

from __future__ import annotations

import pytest
import torch

from explicit_learning.training import float32_head
from explicit_learning.training.float32_head import float32_log_probs, float32_logits

pytestmark = pytest.mark.training


@pytest.mark.parametrize("piece", [5, 64, 1000])
def test_logits_are_the_exact_products_of_the_given_values(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float32_head, "PIECE", piece)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(2, 3, 16, generator=generator).bfloat16()
    weight = torch.randn(64, 16, generator=generator).bfloat16()
    exact = hidden.double() @ weight.double().T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = float32_logits(hidden, weight)
        rounded = torch.nn.functional.linear(hidden, weight)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-5
    assert (rounded - exact).abs().max() > 1e-2


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 6, bias=False, dtype=torch.bfloat16)

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head


def test_inside_the_head_is_in_float32_and_afterwards_as_before() -> None:
    model, hidden = _Model(), torch.randn(2, 4).bfloat16()
    with float32_head.float32_head(model):
        assert model.head(hidden).dtype == torch.float32
    assert model.head(hidden).dtype == torch.bfloat16
    assert "forward" not in vars(model.head)


def test_log_probs_and_their_gradient_are_those_of_exact_logits() -> None:
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(2, 3, 16, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(64, 16, generator=generator).bfloat16()
    ids = torch.randint(64, (2, 3), generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = float32_log_probs(hidden, weight, ids)
    exact_hidden = hidden.detach().double().requires_grad_()
    exact = (exact_hidden @ weight.double().T).log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
    assert (found - exact).abs().max() < 1e-5
    found.sum().backward()
    exact.sum().backward()
    assert hidden.grad is not None
    assert exact_hidden.grad is not None
    # The gradient itself has the type of the hidden states.
    assert ((hidden.grad - exact_hidden.grad).norm() / exact_hidden.grad.norm()) < 2**-8
