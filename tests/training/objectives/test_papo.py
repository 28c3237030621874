"""PAPO's terms against numbers worked out by hand, and against exact expectations."""

from __future__ import annotations

import math

import pytest
import torch

from explicit_learning.files.schema import load_schema
from explicit_learning.plan.typed_plan import Papo
from explicit_learning.training.objectives.papo import UPSTREAM_SHA256, k3, papo_terms
from explicit_learning.training.objectives.token_means import LossType, TokenMean

pytestmark = pytest.mark.objectives

LOG2 = math.log(2.0)


def papo(**changes: float) -> Papo:
    values: dict[str, object] = {
        "adapter_version": "papo/1",
        "upstream_sha256": "0" * 64,
        "recipe": "custom",
        "gamma": 0.02,
        "eta_aug": 0.0,
        "eta_ori": 0.0,
        "aug_entropy_grad": True,
        "mask_probability": 0.6,
        "mask_patch_pixels": 32,
    }
    return Papo(**{**values, **changes})  # type: ignore[arg-type] # fields by name


def token_mean(loss_type: LossType, mask: torch.Tensor, *, accumulation: int = 1, ranks: int = 1) -> TokenMean:
    return TokenMean(
        loss_type=loss_type,
        accumulation=accumulation,
        max_completion_tokens=4,
        step_tokens=mask.sum(),
        ranks=ranks,
    )


def test_the_plan_names_the_source_that_is_followed() -> None:
    block = load_schema("plan")["properties"]["objective"]["properties"]["papo"]["properties"]
    assert block["upstream_sha256"]["const"] == UPSTREAM_SHA256


def test_k3_of_hand_made_ratios() -> None:
    full = torch.tensor([0.0, 0.0, -1.0])
    masked = torch.tensor([0.0, LOG2, -1.0 - LOG2])
    # d = 0, log 2, -log 2: exp(d) - d - 1 = 0, 2 - log 2 - 1, 1/2 + log 2 - 1
    assert k3(full, masked).tolist() == pytest.approx([0.0, 1 - LOG2, LOG2 - 0.5])


def test_k3_is_clamped_as_the_released_code_clamps_it() -> None:
    full = torch.tensor([0.0, -100.0], requires_grad=True)
    masked = torch.tensor([-100.0, 0.0])
    values = k3(full, masked)
    # d = -100 is clamped to -20: exp(-20) + 20 - 1 = 19.000..., then to 10; d = 20: e^20 - 21, then to 10.
    assert values.tolist() == [10.0, 10.0]
    values.sum().backward()
    assert full.grad is not None
    assert full.grad.tolist() == [0.0, 0.0]


def test_masked_log_probs_are_constants_in_k3() -> None:
    full = torch.tensor([-1.0], requires_grad=True)
    masked = torch.tensor([-2.0], requires_grad=True)
    k3(full, masked).sum().backward()
    assert masked.grad is None
    # d = -1; dk3/dfull = 1 - exp(d): positive, so that -gamma k3 raises the log-prob where the mask lowers it.
    assert full.grad is not None
    assert full.grad.item() == pytest.approx(1 - math.exp(-1))


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        # k3 = log 2 - 1/2 at row 0's two tokens, 1 - log 2 at row 1's one; row 2 is a truncated completion.
        ("grpo", ((LOG2 - 0.5) + (1 - LOG2) + 0) / 3),
        ("bnpo", (2 * (LOG2 - 0.5) + (1 - LOG2)) / 3),
        ("dapo", (2 * (LOG2 - 0.5) + (1 - LOG2)) / 3),
        ("dr_grpo", (2 * (LOG2 - 0.5) + (1 - LOG2)) / (3 * 4)),
    ],
)
def test_perception_uses_the_loss_types_own_mean(loss_type: LossType, expected: float) -> None:
    full = torch.tensor([[-1.0, -2.0], [-3.0, math.nan], [-5.0, -5.0]])
    masked = full + torch.tensor([[-LOG2, -LOG2], [LOG2, 1.0], [9.0, 9.0]])
    mask = torch.tensor([[1, 1], [1, 0], [0, 0]])
    terms = papo_terms(full, masked, mask, token_mean(loss_type, mask))
    assert terms.perception.item() == pytest.approx(expected)


def test_entropies_and_coefficients_by_hand() -> None:
    full = torch.tensor([[-1.0, -3.0]])
    masked = torch.tensor([[-1.0 + LOG2, -3.0 - LOG2]])
    mask = torch.ones(1, 2)
    terms = papo_terms(full, masked, mask, token_mean("bnpo", mask))
    assert terms.original_entropy.item() == pytest.approx(2.0)
    assert terms.masked_entropy.item() == pytest.approx(2.0)
    assert terms.perception.item() == pytest.approx(((1 - LOG2) + (LOG2 - 0.5)) / 2)
    weighted = terms.weighted(papo(gamma=0.5, eta_aug=0.25, eta_ori=0.125))
    assert weighted.item() == pytest.approx(-0.5 * 0.25 + 0.25 * 2.0 + 0.125 * 2.0)
    assert terms.clamped.item() == 0.0


def test_each_term_has_the_gradient_that_its_coefficient_says() -> None:
    mask = torch.ones(1, 1)

    def gradients(**coefficients: float) -> tuple[float, float]:
        full = torch.tensor([[-1.0]], requires_grad=True)
        masked = torch.tensor([[-2.0]], requires_grad=True)
        papo_terms(full, masked, mask, token_mean("bnpo", mask)).weighted(papo(**coefficients)).backward()
        return tuple(0.0 if leaf.grad is None else leaf.grad.item() for leaf in (full, masked))  # type: ignore[return-value] # two leaves

    slope = 1 - math.exp(-1)
    assert gradients(gamma=0.5) == pytest.approx((-0.5 * slope, 0.0))
    assert gradients(gamma=0.0, eta_aug=0.25) == pytest.approx((0.0, -0.25))
    assert gradients(gamma=0.0, eta_ori=0.125) == pytest.approx((-0.125, 0.0))
    assert gradients(gamma=0.0) == (0.0, 0.0)


def expected_gradient(logits: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The exact expectation, over tokens sampled from softmax(logits), of the gradient of a value per token."""
    probabilities = logits.detach().softmax(-1)
    (gradient,) = torch.autograd.grad((probabilities * value).sum(), logits)
    return gradient


def test_the_expected_gradient_of_k3_is_that_of_the_reverse_kl() -> None:
    torch.manual_seed(0)
    logits = torch.randn(7, dtype=torch.float64, requires_grad=True)
    q = torch.randn(7, dtype=torch.float64).log_softmax(-1)
    log_p = logits.log_softmax(-1)
    estimate = (logits.detach().softmax(-1) * k3(log_p, q)).sum()
    forward = (log_p.exp() * (log_p - q)).sum()
    assert estimate.item() == pytest.approx(forward.item())  # its value estimates KL(p || q) ...
    (reverse_gradient,) = torch.autograd.grad((q.exp() * (q - log_p)).sum(), logits, retain_graph=True)
    (forward_gradient,) = torch.autograd.grad(forward, logits, retain_graph=True)
    gradient = expected_gradient(logits, k3(log_p, q))
    assert torch.allclose(gradient, reverse_gradient)  # ... but its gradient follows KL(q || p)
    assert not torch.allclose(gradient, forward_gradient, atol=1e-2)


def test_the_original_entropy_has_no_expected_gradient_on_policy() -> None:
    torch.manual_seed(1)
    logits = torch.randn(9, dtype=torch.float64, requires_grad=True)
    gradient = expected_gradient(logits, -logits.log_softmax(-1))
    assert torch.allclose(gradient, torch.zeros_like(gradient), atol=1e-12)


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    full = -torch.rand(8, 5, dtype=torch.float64) * 3
    masked = full + torch.randn(8, 5, dtype=torch.float64)
    lengths = torch.tensor([5, 3, 0, 1, 4, 2, 5, 3])
    return full, masked, (torch.arange(5) < lengths[:, None]).long()


def total(full: torch.Tensor, masked: torch.Tensor, mask: torch.Tensor, parts: list[slice], mean: TokenMean) -> float:
    coefficients = papo(gamma=0.3, eta_aug=0.2, eta_ori=0.1)
    return sum(papo_terms(full[part], masked[part], mask[part], mean).weighted(coefficients).item() for part in parts)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
def test_shuffling_padding_and_splitting_change_nothing(loss_type: LossType) -> None:
    full, masked, mask = batch()
    whole = total(full, masked, mask, [slice(0, 8)], token_mean(loss_type, mask))
    order = torch.tensor([3, 7, 1, 0, 5, 2, 6, 4])
    shuffled = total(full[order], masked[order], mask[order], [slice(0, 8)], token_mean(loss_type, mask))
    assert shuffled == pytest.approx(whole, rel=1e-6)
    padded = [torch.nn.functional.pad(item, (0, 3), value=math.inf) for item in (full, masked)]
    wide = torch.nn.functional.pad(mask, (0, 3))
    assert total(*padded, wide, [slice(0, 8)], token_mean(loss_type, mask)) == pytest.approx(whole, rel=1e-6)
    parts = [slice(start, start + 2) for start in range(0, 8, 2)]
    accumulated = total(full, masked, mask, parts, token_mean(loss_type, mask, accumulation=4))
    assert accumulated == pytest.approx(whole, rel=1e-6)
    # Two ranks with two backward passes each; gradients are averaged over ranks.
    spread = total(full, masked, mask, parts, token_mean(loss_type, mask, accumulation=2, ranks=2)) / 2
    assert spread == pytest.approx(whole, rel=1e-6)


def test_bnpo_weighs_backward_passes_alike_as_trl_does() -> None:
    values, mask = torch.tensor([[1.0, 1.0], [5.0, 0.0]]), torch.tensor([[1, 1], [1, 0]])
    halves = token_mean("bnpo", mask, accumulation=2)
    assert sum(halves(values[row : row + 1], mask[row : row + 1]).item() for row in (0, 1)) == pytest.approx(3.0)
    assert token_mean("bnpo", mask)(values, mask).item() == pytest.approx(7 / 3)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo"])
def test_a_batch_of_truncated_completions_has_no_loss(loss_type: LossType) -> None:
    mask = torch.zeros(2, 3, dtype=torch.long)
    values = torch.ones(2, 3, requires_grad=True)
    share = token_mean(loss_type, mask)(values, mask)
    assert share.item() == 0.0
    share.backward()
    assert values.grad is not None
    assert not values.grad.any()
