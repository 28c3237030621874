"""How large rows are, as far as the memory of a rank depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.preflight import Tokens
from explicit_learning.data.prompt import prompt_messages
from explicit_learning.errors import Refusal
from explicit_learning.inputs.data import ImageTokens, check_frozen_data, image_tokens_per_row
from explicit_learning.inputs.named import read_system_prompt

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.plan.typed_plan import Generation, Plan

__all__ = ["RowSizes", "frozen_row_sizes", "row_sizes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSizes:
    """Sizes of a plan's rows.

    Attributes:
        images: Image tokens of a row.
        text: Tokens that every prompt has beside those of its images: system prompt and template, without a question.
        evaluation: Number of evaluation rows.
    """

    images: ImageTokens
    text: int
    evaluation: int

    @property
    def fewest(self) -> int:
        """Tokens that every prompt has."""
        return self.images.fewest + self.text


def row_sizes(checked: CheckedDataset, *, model: Path, system: str, generation: Generation) -> RowSizes | None:
    """Return the sizes of rows, if the data is whole: broken rows have no sizes.

    The tokens of questions are not counted: that takes as long as the check of the rows, which has bounded them.

    Args:
        checked: The data set.
        model: Folder of the model.
        system: The system prompt.
        generation: The plan's limits.
    """
    if checked.faults:
        return None
    try:
        tokens = Tokens.of_model(model, system, max_image_tokens=generation.max_image_tokens)
        prompt = tokens.text.render(prompt_messages(system, question="", image_count=1))
        (length,) = tokens.text.counts([prompt], special=True)
        images = image_tokens_per_row(checked, tokens.resize)
    except (Refusal, ValueError):
        return None  # the check of the rows has reported it
    # The image is one token of the length.
    return RowSizes(images=images, text=length - 1, evaluation=len(checked.evaluation))


def frozen_row_sizes(plan: Plan, *, base: Path) -> RowSizes | None:
    """Return the sizes of a plan's rows, read from its data set without opening images.

    Args:
        plan: The plan.
        base: Folder that its paths start at.
    """
    try:
        system = read_system_prompt(base / plan.prompt.path, frozen=plan.prompt.sha256)
        checked, faults = check_frozen_data(plan.data, arm=None, base=base, images=False, file=str(base))
    except Refusal:
        return None
    if faults:
        return None
    return row_sizes(checked, model=base / plan.model.path, system=system.text, generation=plan.generation)
