"""From a plan's arm to the trainer that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.data.image_grid import ResizeRules
from explicit_learning.training.grpo import AlignedGRPOTrainer
from explicit_learning.training.objectives.evi_po_trainer import Evidence, EviPoTrainer
from explicit_learning.training.objectives.groups import gather_groups
from explicit_learning.training.objectives.masks import PixelLayout
from explicit_learning.training.objectives.papo_trainer import PapoTrainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import ProcessorMixin

    from explicit_learning.data.rows import SlotRow
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.training.rollouts.encoded_views import ViewEncoder

__all__ = ["objective_trainer"]


def objective_trainer(
    manifest: LaunchManifest, slots: Sequence[SlotRow], *, processor: ProcessorMixin, encoder: ViewEncoder
) -> tuple[type[AlignedGRPOTrainer], dict[str, Any]]:
    """Return an RL arm's trainer and the arguments that it takes beyond those of `AlignedGRPOTrainer`.

    Args:
        manifest: The verified launch manifest.
        slots: All slots.
        processor: The model's processor.
        encoder: Encodes views.

    Raises:
        ValueError: If the plan lacks the arm's block, which the plan's rules forbid.
    """
    plan, arm = manifest.plan, ARMS[manifest.plan.arm]
    objective = plan.objective
    if arm.trainer == "grpo":
        return AlignedGRPOTrainer, {}
    if arm.trainer == "papo" and objective is not None and objective.papo is not None:
        layout = PixelLayout.of(processor.image_processor)
        return PapoTrainer, {"papo": objective.papo, "loss_type": objective.loss_type, "layout": layout}
    if arm.trainer == "evi_po" and objective is not None and objective.evi_po is not None:
        groups = gather_groups(slots)
        return EviPoTrainer, {
            "evi_po": objective.evi_po,
            "arm": arm,
            "groups": groups,
            "encoder": encoder,
            "grounding": Evidence.of(
                groups,
                arm,
                seed=plan.seed,
                rules=ResizeRules.of_model(
                    Path(manifest.paths.model), max_image_tokens=plan.generation.max_image_tokens
                ),
                asset_root=Path(manifest.paths.asset_root),
            ),
        }
    raise ValueError(f"the arm {arm.name} has no {arm.trainer} block")
