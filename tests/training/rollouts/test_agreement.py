"""Differences between the log-probs of sampler and trainer."""

from __future__ import annotations

import pytest
import torch

from explicit_learning.training.rollouts.agreement import Agreement, allowed_mass, compare_log_probs

pytestmark = pytest.mark.training


def test_only_chosen_tokens_count() -> None:
    sampler = torch.tensor([[-1.0, -2.0, -9.0], [-0.5, -7.0, -7.0]])
    trainer = torch.tensor([[-1.25, -2.0, 0.0], [-1.5, 0.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert compare_log_probs(sampler, trainer, mask) == Agreement(tokens=3, total=1.25, largest=1.0)


def test_nothing_to_compare() -> None:
    empty = torch.zeros(2, 3)
    assert compare_log_probs(empty, empty, empty) == Agreement(tokens=0, total=0.0, largest=0.0)


def test_the_allowed_mass_follows_from_both_log_probs() -> None:
    """Log p(token) = log p(token | allowed) + log p(allowed)."""
    constrained = torch.tensor([[-1.0, -0.5, -3.0], [-2.0, 0.0, 0.0]])
    whole = constrained + torch.tensor([[0.9, 0.25, 1.0], [1.0, 1.0, 1.0]]).log()
    mass = allowed_mass(constrained, whole.requires_grad_(), torch.tensor([[1, 1, 0], [1, 0, 0]]))
    assert mass.tokens == 3
    assert mass.total == pytest.approx(0.9 + 0.25 + 1.0, abs=1e-6)
    assert mass.least == pytest.approx(0.25, abs=1e-6)
    above = allowed_mass(constrained, constrained + 0.1, torch.ones(2, 3))
    assert (above.total, above.least) == (6.0, 1.0)
