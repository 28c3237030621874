"""An SFT pass counted as the gates count it, without transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.data.preflight import Tokens
from explicit_learning.data.reading import read_sft_rows
from explicit_learning.inputs.held_out import held_out_of_document
from explicit_learning.inputs.sft_pass import SftPass, loss_tokens, sft_order, sft_prefix
from explicit_learning.plan.geometry import Geometry

if TYPE_CHECKING:
    from pathlib import Path


def count_light(model: Path, prompt: str, dataset: Path, plan: dict[str, Any]) -> SftPass:
    """Count the pass of a draft that is being frozen."""
    held_out = held_out_of_document(plan).groups
    rows = sft_order(read_sft_rows(dataset), arm=plan["arm"], data_seed=plan["data_seed"], held_out=held_out)
    return sft_prefix(
        loss_tokens(rows, Tokens.of_model(model, prompt, max_image_tokens=None)),
        rows_per_step=Geometry.of_document(plan).rows_per_cycle,
        max_loss_tokens=plan["budget"]["max_sft_loss_tokens"],
    )
