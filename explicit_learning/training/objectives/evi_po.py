"""EVI-PO's terms (``evi_po/1``): prefer what the shown evidence supports, and look at the evidence.

All views of a group are asked the same question, and each is scored on the same few candidate answers: the full answer
a, abstention, and the substitutes. S_v(c) is the summed log-prob of candidate c under view v.

*Direction.* For an intervened view r with target t: g_v = S_v(t) - S_v(a). The intervened view must prefer its target
by a margin m, g_r >= m, and FULL must not, g_FULL <= -m, both at once:

    L_shift = mean_r 1/2 [softplus(m - g_r) + softplus(m + g_FULL)]

The obvious shorter form, a difference in differences g_r - g_FULL >= m, is met by a model that never abstains: with
g_r = -5 and g_FULL = -9 the difference is 4, and every answer is still a. So it is logged (`Direction.deltas`), but not
trained.

*Control.* Where FULL's best candidate is a, the control view, whose right answer is also a, must choose like FULL:
L_control = KL(q_FULL || q_CONTROL) with q the softmax of S over the candidates, and q_FULL a constant: a control view
is pulled towards FULL, not FULL towards it. Where FULL is wrong, it is not a target to follow, and the term is 0.

*Evidence.* L_ev asks which image tokens the states that predict the gold body resemble: p = softmax(cos(h, v_i) / tau),
L_ev = -log sum_i w_i p_i, with w the covered share of each token's cell over its maximum.

*Weighing.* A group counts once per slot visit. The added part is a sum of groups times a constant, ranks / slots per
step: DDP averages over ranks, backward passes add up, so neither shuffling, micro-batching nor accumulation changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["Direction", "GroupScores", "cross_entropy", "direction", "evidence", "group_scale", "summed_log_probs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScores:
    """S of one group's views; candidate 0 is the full answer. All of one floating type.

    Attributes:
        full: The FULL view's scores; shape (candidates,).
        intervened: The MISSING and SUBSTITUTE views' scores; shape (views, candidates).
        targets: The right candidate of each intervened view.
        control: The CONTROL views' scores; shape (views, candidates).
    """

    full: Tensor
    intervened: Tensor
    targets: tuple[int, ...]
    control: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """One group's direction term and its parts.

    Attributes:
        loss: The term before its weight lambda_dir: shift + kappa x control; 0-dimensional.
        shift: L_shift, or its replacement; 0 without intervened views.
        control: L_control, or its replacement; 0 without control views, or where FULL's best candidate is another.
        deltas: g_r - g_FULL of every intervened view, without gradient; shape (views,).
        has_shift: Whether there was an intervened view.
        has_control: Whether the control part was computed.
        views_met: Intervened views that prefer their target while FULL does not, whatever the margin.
    """

    loss: Tensor
    shift: Tensor
    control: Tensor
    deltas: Tensor
    has_shift: bool
    has_control: bool
    views_met: int


def summed_log_probs(log_probs: Tensor, scored: Tensor) -> Tensor:
    """Return S: the sum of each row's scored tokens' log-probs; shape (rows,), in nats.

    Args:
        log_probs: Shape (rows, tokens), float32; tokens that are not scored have no influence.
        scored: Shape (rows, tokens), bool.
    """
    return log_probs.masked_fill(~scored, 0.0).sum(-1)


def direction(scores: GroupScores, *, margin: float, kappa: float) -> Direction:
    """Return the direction term of one group.

    Args:
        scores: The group's scores.
        margin: m, in nats.
        kappa: Weight of the control part.
    """
    from torch.nn.functional import kl_div, softplus

    gaps, full_gaps = _gaps(scores)
    shift = _mean((softplus(margin - gaps) + softplus(margin + full_gaps)) / 2)
    holds = len(scores.control) > 0 and bool(scores.full.detach()[0] >= scores.full.detach().max())
    if holds:
        goal = scores.full.detach().log_softmax(-1).expand_as(scores.control)
        control = kl_div(scores.control.log_softmax(-1), goal, reduction="none", log_target=True).sum(-1).mean()
    else:
        control = scores.full.new_zeros(())
    return _direction(scores, shift, control, kappa=kappa, has_control=holds)


def cross_entropy(scores: GroupScores, *, kappa: float) -> Direction:
    """Return the term that the arm ``evi_po_ce`` trains instead: cross-entropy on each view's right answer.

    It replaces the direction term part by part, with the same weights and from the same forwards: each softplus becomes
    -S(right answer) of its view, averaged over intervened views as before; the control part becomes that of the control
    views. The right answer is known, so the control part does not depend on what FULL prefers.
    """
    shift = _mean(-(_at_targets(scores) + scores.full[0]) / 2)
    control = _mean(-scores.control[:, 0])
    return _direction(scores, shift, control, kappa=kappa, has_control=len(scores.control) > 0)


def _gaps(scores: GroupScores) -> tuple[Tensor, Tensor]:
    """Return (g_r, g_FULL) of every intervened view; shape (views,) each."""
    targets = list(scores.targets)
    return _at_targets(scores) - scores.intervened[:, 0], scores.full[targets] - scores.full[0]


def _at_targets(scores: GroupScores) -> Tensor:
    return scores.intervened[range(len(scores.targets)), list(scores.targets)]


def _mean(values: Tensor) -> Tensor:
    """Return the mean; 0 if there are no values."""
    return values.mean() if len(values) else values.new_zeros(())


def _direction(scores: GroupScores, shift: Tensor, control: Tensor, *, kappa: float, has_control: bool) -> Direction:
    gaps, full_gaps = (gap.detach() for gap in _gaps(scores))
    return Direction(
        loss=shift + kappa * control,
        shift=shift,
        control=control,
        deltas=gaps - full_gaps,
        has_shift=len(scores.targets) > 0,
        has_control=has_control,
        views_met=int(((gaps > 0) & (full_gaps < 0)).sum()),
    )


def evidence(predicting: Tensor, image: Tensor, shares: Sequence[float] | Tensor, *, tau: float) -> Tensor | None:
    """Return L_ev of one FULL view, in nats, or ``None`` where no image token has evidence or the gold body is empty.

    Args:
        predicting: Final (post-norm) hidden states at the positions that predict the gold body's tokens; shape
            (tokens, features).
        image: Final hidden states at the image tokens; shape (image tokens, features).
        shares: Covered share of each image token's cell, in [0, 1]; shape (image tokens,).
        tau: Temperature of the cosine similarity.

    Raises:
        ValueError: If there is not one share for every image token.
    """
    import torch
    from torch.nn.functional import cosine_similarity

    weights = torch.as_tensor(shares, dtype=torch.float32, device=image.device)
    if weights.shape != image.shape[:1]:
        raise ValueError(f"{len(image)} image tokens, but {len(weights)} shares of evidence")
    if not len(predicting) or not bool(weights.max() > 0):
        return None
    query = predicting.float().mean(0, keepdim=True)
    logits = cosine_similarity(query, image.float(), dim=-1) / tau
    covered = weights > 0
    favoured = logits[covered] + (weights[covered] / weights.max()).log()
    return logits.logsumexp(0) - favoured.logsumexp(0)


def group_scale(*, ranks: int, slots_per_step: int) -> float:
    """Return the constant that a rank's sum of group losses is multiplied by.

    Args:
        ranks: Number of ranks; DDP divides gradients by it.
        slots_per_step: Slot visits per optimizer step, over all ranks and backward passes.
    """
    return ranks / slots_per_step
