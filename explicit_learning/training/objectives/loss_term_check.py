"""What was seen of each term of an RL loss, so that a record can say that it was trained and not only configured.

Published code of such objectives has added terms after the loss was fixed, or terms that are constants: everything was
logged, nothing was trained. So each term is asked, in every backward pass that calls for it, whether it is there and
finite, and whether what it adds to the loss has a gradient with respect to the model's outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.rundir.rank_report import LossTerm
from explicit_learning.training.collectives import total

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, device

    from explicit_learning.training.counters import Counters

__all__ = ["expect", "observe", "observed_terms"]

# Places in a term's counts.
CALLED, FINITE, GRADIENT = 0, 1, 2


def expect(counters: Counters, names: Sequence[str]) -> None:
    """Say which terms an arm's loss has: ranks report the same ones, whatever their shards held."""
    for name in names:
        counters.terms.setdefault(name, [0, 0, 0])


def observe(counters: Counters, name: str, added: Tensor, outputs: Sequence[Tensor]) -> None:
    """Note a term of this backward pass.

    Args:
        counters: The run's counters.
        name: The term's name.
        added: What it adds to the loss, coefficient included; 0-dimensional.
        outputs: The model's outputs that it is made of. Whether it has a gradient is asked until it once had one.
    """
    import torch

    seen = counters.terms[name]
    seen[CALLED] += 1
    seen[FINITE] += bool(torch.isfinite(added.detach()))
    leaves = [output for output in outputs if output.requires_grad]
    if seen[GRADIENT] == 0 and added.requires_grad and leaves:
        gradients = torch.autograd.grad(added, leaves, retain_graph=True, allow_unused=True)
        seen[GRADIENT] += any(gradient is not None and bool(gradient.any()) for gradient in gradients)


def observed_terms(counters: Counters, device: device) -> dict[str, LossTerm]:
    """Return what was seen of each term, over all ranks.

    A term that no group of the run calls for (control, without CONTROL views) is present wherever it was called for.
    """
    names = sorted(counters.terms)
    sums = total([count for name in names for count in counters.terms[name]], device)
    terms = {}
    for index, name in enumerate(names):
        called, finite, gradient = sums[3 * index : 3 * index + 3]
        terms[name] = LossTerm(present=True, finite=finite == called, gradient=gradient > 0)
    return terms
