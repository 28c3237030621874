"""Differences between the log-probs of sampler and trainer."""

from __future__ import annotations

import pytest
import torch

from explicit_learning.training.rollouts.agreement import Agreement, compare_log_probs

pytestmark = pytest.mark.training


def test_only_chosen_tokens_count() -> None:
    sampler = torch.tensor([[-1.0, -2.0, -9.0], [-0.5, -7.0, -7.0]])
    trainer = torch.tensor([[-1.25, -2.0, 0.0], [-1.5, 0.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert compare_log_probs(sampler, trainer, mask) == Agreement(tokens=3, total=1.25, largest=1.0)


def test_nothing_to_compare() -> None:
    empty = torch.zeros(2, 3)
    assert compare_log_probs(empty, empty, empty) == Agreement(tokens=0, total=0.0, largest=0.0)
