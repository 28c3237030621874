"""GRPO with PAPO's terms: the same sampled tokens once more, under a masked image.

As in the authors' released code, the log-probs under the masked image are those of the policy that sampled the tokens:
they are computed once per generation cycle, without gradient, and stay constant while its completions are used again.
Where the plan asks for their gradient (``aug_entropy_grad``), they are computed in every backward pass instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.training.grpo import AlignedGRPOTrainer
from explicit_learning.training.objectives.loss_term_check import check_term
from explicit_learning.training.objectives.masks import black_out, draw_squares, mask_generator
from explicit_learning.training.objectives.papo import papo_terms
from explicit_learning.training.objectives.token_means import TokenMean

if TYPE_CHECKING:
    from torch import Tensor

    from explicit_learning.plan.typed_plan import Papo
    from explicit_learning.training.objectives.masks import PixelLayout
    from explicit_learning.training.objectives.papo import PapoTerms
    from explicit_learning.training.objectives.token_means import LossType
    from explicit_learning.training.rollouts.rows import SlotPrompt

__all__ = ["PapoTrainer"]

MASKED_LOG_PROBS = "masked_per_token_logps"
_MODEL_FIELDS = ("image_grid_thw", "num_images", "mm_token_type_ids")


class PapoTrainer(AlignedGRPOTrainer):
    """The trainer of the arm ``papo``."""

    def __init__(self, *, papo: Papo, loss_type: LossType, layout: PixelLayout, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._papo = papo
        self._loss_type = loss_type
        self._layout = layout

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss = super()._compute_loss(model, inputs)
        full = self._policy_log_probs
        if full is None:
            raise AssertionError("the policy loss did not score the sampled tokens")
        masked = self._masked_log_probs(model, inputs)
        terms = papo_terms(full, masked, inputs["completion_mask"], self._token_mean(inputs))
        self._log_and_check(terms, full, masked)
        return loss + terms.weighted(self._papo)

    def _masked_log_probs(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return the sampled tokens' log-probs under the masked images; shape (rows, tokens)."""
        if MASKED_LOG_PROBS in inputs:
            kept: Tensor = inputs[MASKED_LOG_PROBS]
            return kept
        # Not through DDP's wrapper: it prepares for one backward at each of its forwards.
        policy = self.accelerator.unwrap_model(model)
        with torch.set_grad_enabled(self._papo.aug_entropy_grad):
            masked: Tensor = super()._get_per_token_logps_and_entropies(
                policy,
                torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
                inputs["completion_ids"].size(1),
                pixel_values=self._masked_pixels(inputs),
                **{name: inputs.get(name) for name in _MODEL_FIELDS},
            )[0]
        if not self._papo.aug_entropy_grad:
            inputs[MASKED_LOG_PROBS] = masked
        return masked

    def _masked_pixels(self, inputs: dict[str, Any]) -> Tensor:
        grids = inputs["image_grid_thw"]
        squares: list[list[list[bool]]] = []
        drawn = iter(grids.tolist())
        prompt: SlotPrompt
        for prompt, count in zip(inputs["slot_prompt"], inputs["num_images"], strict=True):
            generator = mask_generator(seed=self._plan.seed, slot_id=prompt.rollout.slot_id, visit=prompt.rollout.visit)
            for _ in range(count):
                _, rows, columns = next(drawn)
                squares.append(
                    draw_squares(
                        generator,
                        height=rows * self._layout.patch,
                        width=columns * self._layout.patch,
                        side=self._papo.mask_patch_pixels,
                        probability=self._papo.mask_probability,
                    )
                )
        side = self._papo.mask_patch_pixels
        return black_out(inputs["pixel_values"], grids, squares, side=side, layout=self._layout)

    def _token_mean(self, inputs: dict[str, Any]) -> TokenMean:
        return TokenMean(
            loss_type=self._loss_type,
            accumulation=self.current_gradient_accumulation_steps,
            max_completion_tokens=self._plan.generation.max_completion_tokens,
            step_tokens=inputs["num_items_in_batch"],
            ranks=self.accelerator.num_processes,
        )

    def _log_and_check(self, terms: PapoTerms, full: Tensor, masked: Tensor) -> None:
        """Log the terms as means over the step, and check what each adds to the loss."""
        papo, counters = self._papo, self.loop.counters
        # Shares of a backward pass add up over the step; TRL averages what is logged over its backward passes.
        parts = torch.stack([terms.perception, terms.masked_entropy, terms.original_entropy, terms.clamped])
        shares = parts.detach() * self.current_gradient_accumulation_steps
        means = self.accelerator.reduce(shares, reduction="mean").tolist()
        names = ("k3", "masked_entropy", "original_entropy", "clamped_share")
        for name, mean in zip(names, means, strict=True):
            self._metrics["train"][f"papo/{name}"].append(mean)
        check_term(counters, "perception", -papo.gamma * terms.perception, [full])
        check_term(counters, "masked_entropy", papo.eta_aug * terms.masked_entropy, [masked])
        check_term(counters, "original_entropy", papo.eta_ori * terms.original_entropy, [full])
