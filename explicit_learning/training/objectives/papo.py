"""PAPO's terms (``papo/1``), after the authors' released code.

Source: Wang et al., *Perception-Aware Policy Optimization for Multimodal Reasoning* (arXiv:2507.06448, ICLR 2026), and
``verl/workers/actor/dp_actor.py`` of an author's repository (`UPSTREAM_SHA256`). Where they disagree, the code is
followed: means are over tokens as the policy loss takes them (the paper writes a mean per completion), and log-probs
under the masked image are constants in the perception term (the paper differentiates both). The entropy under the
masked image has a gradient only where ``aug_entropy_grad`` asks for one (the code's later switch
``RECOMPUTE_AUG_LOG_PROBS``): without, the term is a constant that is added to the reported loss and trains nothing,
so a plan that gives it a weight must switch the gradient on.

**Which KL this is, and is not.** Let p be the policy given the original image and q given the masked one. The tokens
are sampled from p, so the mean of k3 = q/p - log(q/p) - 1 *estimates KL(p || q)*. Its gradient follows the reverse:
with q constant, the expected gradient of k3 is that of *KL(q || p)*, as sum p (1 - q/p) grad log p = -sum q grad log p
shows. Minimising -gamma k3 therefore drives p away from q where q is large: it raises the log-prob of sampled tokens
that the masked image makes less likely (q < p), and lowers that of tokens that it makes more likely; only the clamps
bound the latter. This is not the gradient of KL(p || q), which also has a reward-like part (log p/q).

**The entropies.** H = -mean log-prob of *sampled* tokens. Under the original image and on-policy, E[grad log p] = 0:
the expected gradient of H_ori is zero, and a single sample's gradient is noise around it. H_ori matters only
off-policy, with several updates per rollout. H_aug is a cross-entropy (tokens of p scored by q), not the masked
policy's entropy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from explicit_learning.plan.typed_plan import Papo
    from explicit_learning.training.objectives.token_means import TokenMean

__all__ = ["K3_LIMIT", "LOG_RATIO_LIMIT", "UPSTREAM_SHA256", "PapoTerms", "k3", "papo_terms"]

# github.com/SStoica12/PAPO at commit 6f2e58367a4a558a27c9171780d45dfbf0577dd7. A plan must name it.
UPSTREAM_SHA256 = "d23f84a036366fa65f5322c66334acf8d80c8659b88d7c80e092d25e5974b948"

# The released code's clamps, of the log-ratio in nats and of k3.
LOG_RATIO_LIMIT = 20.0
K3_LIMIT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PapoTerms:
    """One backward pass's share of each term, before its coefficient; 0-dimensional tensors.

    Attributes:
        perception: Mean of k3, in nats. Its coefficient is -gamma.
        masked_entropy: H_aug, in nats per token.
        original_entropy: H_ori, in nats per token.
        clamped: Share of tokens at which a clamp was active, so that k3 has no gradient there.
    """

    perception: Tensor
    masked_entropy: Tensor
    original_entropy: Tensor
    clamped: Tensor

    def weighted(self, papo: Papo) -> Tensor:
        """Return what is added to the GRPO loss: -gamma k3 + eta_aug H_aug + eta_ori H_ori."""
        entropies = papo.eta_aug * self.masked_entropy + papo.eta_ori * self.original_entropy
        return entropies - papo.gamma * self.perception


def k3(full: Tensor, masked: Tensor) -> Tensor:
    """Return k3 of every sampled token, clamped as in the released code; in nats, of the inputs' shape.

    Args:
        full: Log-probs of the sampled tokens given the original image; float32.
        masked: Log-probs of the same tokens given the masked image; float32, a constant.
    """
    ratio = (masked.detach() - full).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (ratio.exp() - ratio - 1).clamp(-K3_LIMIT, K3_LIMIT)


def papo_terms(full: Tensor, masked: Tensor, mask: Tensor, mean: TokenMean) -> PapoTerms:
    """Return PAPO's terms for one backward pass.

    Args:
        full: Log-probs of the sampled tokens given the original image, with gradient; shape (rows, tokens).
        masked: Log-probs of the same tokens given the masked image, same shape; with gradient where H_aug is to have
            one.
        mask: 1 where a token has a loss; shape (rows, tokens).
        mean: How the policy loss averages.
    """
    full, masked = full.float(), masked.float()
    divergence = k3(full, masked)
    ratio = (masked - full).detach()
    clamped = (ratio.abs() >= LOG_RATIO_LIMIT) | (divergence.detach() >= K3_LIMIT)
    return PapoTerms(
        perception=mean(divergence, mask),
        masked_entropy=mean(-masked, mask),
        original_entropy=mean(-full, mask),
        clamped=mean(clamped.to(full.dtype), mask),
    )
