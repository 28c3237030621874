"""EVI-PO's terms against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from explicit_learning.training.objectives.evi_po import (
    GroupScores,
    cross_entropy,
    direction,
    evidence,
    group_scale,
    summed_log_probs,
)

pytestmark = pytest.mark.objectives

LOG2, LOG3 = math.log(2.0), math.log(3.0)


def softplus(value: float) -> float:
    return math.log1p(math.exp(value))


def leaf(values: list[float] | list[list[float]], width: int = 2) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.float64) if values else torch.zeros(0, width, dtype=torch.float64)
    return tensor.requires_grad_()


def group(
    full: list[float], intervened: list[list[float]], targets: tuple[int, ...], control: list[list[float]]
) -> GroupScores:
    width = len(full)
    return GroupScores(
        full=leaf(full), intervened=leaf(intervened, width), targets=targets, control=leaf(control, width)
    )


def gradient(tensor: Tensor) -> list[float]:
    assert tensor.grad is not None
    return [round(value, 12) for value in tensor.grad.flatten().tolist()]


def test_scores_sum_what_is_scored_and_nothing_else() -> None:
    log_probs = torch.tensor([[-1.0, -2.0, -4.0], [-8.0, -16.0, math.nan]], requires_grad=True)
    scored = torch.tensor([[False, True, True], [True, True, False]])
    scores = summed_log_probs(log_probs, scored)
    assert scores.tolist() == [-6.0, -24.0]
    scores.sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]]


def test_shift_by_hand() -> None:
    # C = (a, abstain, b). FULL: S = (-1, -4, -3). MISSING: (-2, -1, -5), target abstain. SUBSTITUTE: (-2, -6, -2.5), b.
    scores = group([-1.0, -4.0, -3.0], [[-2.0, -1.0, -5.0], [-2.0, -6.0, -2.5]], (1, 2), [])
    found = direction(scores, margin=1.0, kappa=1.0)
    # g_MISSING = 1, g_FULL(abstain) = -3; g_SUBSTITUTE = -0.5, g_FULL(b) = -2
    expected = ((softplus(0.0) + softplus(-2.0)) / 2 + (softplus(1.5) + softplus(-1.0)) / 2) / 2
    assert found.shift.item() == pytest.approx(expected)
    assert found.loss.item() == pytest.approx(expected)
    assert found.deltas.tolist() == pytest.approx([4.0, 1.5])
    assert (found.has_shift, found.has_control, found.views_met) == (True, False, 1)
    found.loss.backward()
    # d softplus(x) = sigmoid(x). MISSING's S(abstain): -sigmoid(0) / 4, its S(a): the opposite.
    assert gradient(scores.intervened)[:3] == pytest.approx([0.125, -0.125, 0.0])


def test_a_model_that_never_abstains_still_has_a_loss_though_its_difference_is_past_the_margin() -> None:
    # Under MISSING it prefers a by 5 nats, under FULL by 9: the difference in differences is 4, the margin 1.
    scores = group([-0.1, -9.1], [[-0.1, -5.1]], (1,), [])
    found = direction(scores, margin=1.0, kappa=1.0)
    assert found.deltas.item() == pytest.approx(4.0)
    assert found.views_met == 0
    difference_in_differences = softplus(1.0 - found.deltas.item())
    assert difference_in_differences < 0.05  # that loss is as good as met ...
    assert found.shift.item() == pytest.approx((softplus(6.0) + softplus(-8.0)) / 2)
    assert found.shift.item() > 3.0  # ... this one is not,
    found.loss.backward()
    assert gradient(scores.intervened)[1] < -0.49  # and pushes abstention up where the evidence is missing.


def test_control_by_hand() -> None:
    # q_FULL = (3/4, 1/4), q_CONTROL = (1/2, 1/2): KL = 3/4 log(3/2) + 1/4 log(1/2)
    scores = group([LOG3, 0.0], [], (), [[5.0, 5.0]])
    found = direction(scores, margin=1.0, kappa=0.5)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert found.control.item() == pytest.approx(expected)
    assert found.loss.item() == pytest.approx(0.5 * expected)
    assert (found.has_shift, found.has_control) == (False, True)
    assert found.deltas.tolist() == []
    found.loss.backward()
    assert scores.full.grad is None  # FULL is what control is measured by, not what is trained
    # dKL/dS_control = q_CONTROL - q_FULL
    assert gradient(scores.control) == pytest.approx([0.5 * (0.5 - 0.75), 0.5 * (0.5 - 0.25)])


def test_several_control_views_are_averaged() -> None:
    one = direction(group([LOG3, 0.0], [], (), [[5.0, 5.0]]), margin=1.0, kappa=1.0).control.item()
    both = direction(group([LOG3, 0.0], [], (), [[5.0, 5.0], [LOG3, 0.0]]), margin=1.0, kappa=1.0)
    assert both.control.item() == pytest.approx(one / 2)


def test_control_is_silent_where_full_is_wrong() -> None:
    scores = group([-4.0, -1.0], [[-2.0, -1.0]], (1,), [[-1.0, -2.0]])
    found = direction(scores, margin=1.0, kappa=1.0)
    assert found.control.item() == 0.0
    assert not found.has_control
    found.loss.backward()
    assert scores.control.grad is None


def test_a_group_without_other_views_has_no_loss() -> None:
    found = direction(group([-1.0, -2.0], [], (), []), margin=1.0, kappa=1.0)
    assert found.loss.item() == 0.0
    assert (found.has_shift, found.has_control) == (False, False)


def test_cross_entropy_takes_each_parts_place_and_weight() -> None:
    scores = group([-1.0, -4.0, -3.0], [[-2.0, -1.5, -5.0], [-2.0, -6.0, -2.5]], (1, 2), [[-0.5, -1.0, -1.0]])
    found = cross_entropy(scores, kappa=2.0)
    assert found.shift.item() == pytest.approx(((1.5 + 1.0) / 2 + (2.5 + 1.0) / 2) / 2)
    assert found.control.item() == pytest.approx(0.5)
    assert found.loss.item() == pytest.approx(1.5 + 2 * 0.5)
    assert found.deltas.tolist() == pytest.approx([0.5 - (-3.0), -0.5 - (-2.0)])
    found.loss.backward()
    assert gradient(scores.full) == pytest.approx([-0.5, 0.0, 0.0])
    assert gradient(scores.intervened) == pytest.approx([0, -0.25, 0, 0, 0, -0.25])
    assert gradient(scores.control) == pytest.approx([-2.0, 0.0, 0.0])


def test_evidence_by_hand() -> None:
    # Two predicting states with mean (1, 0); image tokens at cosine 1, 0, -1.
    predicting = torch.tensor([[2.0, 1.0], [0.0, -1.0]])
    image = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    tau = 0.5
    weights = [math.exp(value / tau) for value in (1.0, 0.0, -1.0)]
    # Shares 0, 0.5, 0.25 become w = 0, 1, 0.5.
    expected = -math.log((weights[1] + 0.5 * weights[2]) / sum(weights))
    found = evidence(predicting, image, [0.0, 0.5, 0.25], tau=tau)
    assert found is not None
    assert found.item() == pytest.approx(expected)


def test_evidence_everywhere_costs_nothing_and_one_token_its_share() -> None:
    predicting, image = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    everywhere, one = (evidence(predicting, image, shares, tau=0.07) for shares in ([0.25, 0.25], [0.0, 1.0]))
    assert everywhere is not None
    assert one is not None
    assert everywhere.item() == pytest.approx(0.0, abs=1e-6)
    assert one.item() == pytest.approx(LOG2)


def test_evidence_pulls_the_predicting_state_towards_the_covered_token() -> None:
    predicting = torch.tensor([[1.0, 1.0]], requires_grad=True)
    image = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    found = evidence(predicting, image, [0.0, 1.0], tau=0.07)
    assert found is not None
    found.backward()
    assert predicting.grad is not None
    assert predicting.grad[0, 0] > 0 > predicting.grad[0, 1]
    assert image.grad is not None
    assert image.grad.abs().sum() > 0


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_evidence_looks_at_directions_only(scale: float) -> None:
    torch.manual_seed(0)
    predicting, image = torch.randn(2, 5), torch.randn(4, 5)
    plain, scaled = (evidence(predicting, image * factor, [0, 1, 0, 0.5], tau=0.1) for factor in (1.0, scale))
    assert plain is not None
    assert scaled is not None
    assert scaled.item() == pytest.approx(plain.item(), rel=1e-4)


def test_evidence_that_covers_nothing_or_an_empty_gold_body_has_no_term() -> None:
    image = torch.ones(2, 3)
    assert evidence(torch.ones(1, 3), image, [0.0, 0.0], tau=0.07) is None
    assert evidence(torch.ones(0, 3), image, [0.0, 1.0], tau=0.07) is None


def test_one_share_for_every_image_token() -> None:
    with pytest.raises(ValueError, match="2 image tokens, but 3 shares"):
        evidence(torch.ones(1, 3), torch.ones(2, 3), [0.0, 1.0, 0.0], tau=0.07)


def test_neither_ranks_nor_backward_passes_change_the_groups_weight() -> None:
    losses = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    alone = group_scale(ranks=1, slots_per_step=6) * sum(losses)
    # Two ranks with unequal backward passes; DDP averages over ranks.
    ranks = [[losses[:2], losses[2:3]], [[], losses[3:]]]
    scale = group_scale(ranks=2, slots_per_step=6)
    spread = sum(scale * sum(part) for rank in ranks for part in rank) / 2
    assert spread == pytest.approx(alone) == pytest.approx(sum(losses) / 6)
