"""Checks of each term of an RL loss, so that a record can show that the term was trained and not only configured.

Published code of such objectives has added terms after the loss was computed, or terms that are constants: they were
logged and trained nothing. So in every backward pass that calls for a term, it is checked that the term is there and
finite, and whether what it adds to the loss has a gradient with respect to the model's outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.rundir.rank_report import LossTerm
from explicit_learning.training.collectives import sum_over_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, device

    from explicit_learning.arms import Arm
    from explicit_learning.rundir.counters import Counters

__all__ = ["check_term", "checked_terms", "count_pass", "declare_terms"]

# Places in a term's counts.
CALLED, FINITE, GRADIENT = 0, 1, 2


def declare_terms(counters: Counters, arm: Arm) -> None:
    """Declare the terms of an arm's loss, so that all ranks report the same ones, whatever rows they held."""
    for term in arm.terms:
        counters.terms.setdefault(term.name, [0, 0, 0])


def count_pass(counters: Counters, name: str, loss: Tensor) -> None:
    """Count a backward pass of a term that is the whole loss."""
    import torch

    counts = counters.terms[name]
    counts[CALLED] += 1
    counts[FINITE] += bool(torch.isfinite(loss.detach()))


def check_term(counters: Counters, name: str, added: Tensor, outputs: Sequence[Tensor]) -> None:
    """Check a term in this backward pass, and count what was found.

    Args:
        counters: The run's counters.
        name: The term's name.
        added: What it adds to the loss, coefficient included; 0-dimensional.
        outputs: The model's outputs that it is computed from. Its gradient is computed until it was once not 0.
    """
    import torch

    counts = counters.terms[name]
    counts[CALLED] += 1
    counts[FINITE] += bool(torch.isfinite(added.detach()))
    leaves = [output for output in outputs if output.requires_grad]
    if counts[GRADIENT] == 0 and added.requires_grad and leaves:
        gradients = torch.autograd.grad(added, leaves, retain_graph=True, allow_unused=True)
        counts[GRADIENT] += any(gradient is not None and bool(gradient.any()) for gradient in gradients)


def checked_terms(counters: Counters, device: device) -> dict[str, LossTerm]:
    """Return what was found of each term, over all ranks.

    A term that no group of the run calls for (control, without CONTROL views) has the count 0.
    """
    names = sorted(counters.terms)
    sums = sum_over_ranks([count for name in names for count in counters.terms[name]], device)
    terms = {}
    for index, name in enumerate(names):
        called, finite, gradient = sums[3 * index : 3 * index + 3]
        terms[name] = LossTerm(called=called, finite=finite == called, gradient=gradient > 0)
    return terms
