"""What base model with adapter and merged weights are asked: rows of the run's evaluation, or a generated image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.data.answers import AnswerType
from explicit_learning.data.images import ImageStore
from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.data.reading import read_slot_rows
from explicit_learning.data.rows import ImageRef, Relation, SlotRow, View
from explicit_learning.errors import Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.progress import say

if TYPE_CHECKING:
    from PIL.Image import Image

    from explicit_learning.data.images import ImageSource
    from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
    from explicit_learning.rundir.export_record import Asked

__all__ = ["Questions", "questions_of"]

MOST_ROWS = 8
SIDE = 224  # of the generated image. Unit: pixels.
SYSTEM = "You answer questions about images. Write the answer between <answer> and </answer>."
QUESTION = "What does the image show?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Questions with their images.

    Attributes:
        asked: Where they come from.
        rows: The rows.
        system: The system prompt.
        images: Their images.
    """

    asked: Asked
    rows: tuple[SlotRow, ...]
    system: str
    images: ImageSource


def questions_of(plan: Plan, paths: ResolvedPaths) -> Questions:
    """Return rows from all over a run's evaluation, or one question of ours if those that were frozen are not there."""
    try:
        frozen = {paths.evaluation: plan.data.evaluation_manifest.sha256, paths.prompt: plan.prompt.sha256}
        if all(sha256_file(Path(path)) == sha256 for path, sha256 in frozen.items()):
            rows = read_slot_rows(Path(paths.evaluation), split="evaluation")
            chosen = tuple(rows[number] for number in _spread(len(rows)))
            images = ImageStore(Path(paths.asset_root))
            for row in chosen:
                for image in row.selected_view.images:
                    images.load(image, row=row.slot_id)
            system = load_system_prompt(Path(paths.prompt))
            return Questions(asked="evaluation rows", rows=chosen, system=system, images=images)
    except (OSError, Refusal) as error:
        say(f"the run's evaluation rows cannot be asked: {error}")
    return Questions(asked="generated image", rows=(_row(),), system=SYSTEM, images=_Generated())


def _spread(count: int) -> list[int]:
    """Return some numbers below a count, evenly spread: rows of one relation lie side by side."""
    wanted = min(MOST_ROWS, count)
    return [number * count // wanted for number in range(wanted)]


def _row() -> SlotRow:
    image = ImageRef(image_index=0, path="generated.png", sha256="0" * 64, width=SIDE, height=SIDE)
    view = View(view_id="generated", role=Relation.FULL, state="generated", images=(image,))
    return SlotRow(
        slot_id="generated",
        group_id="generated",
        base_id="generated",
        split="evaluation",
        question=QUESTION,
        choices=(),
        answer_type=AnswerType.TEXT,
        relation=Relation.FULL,
        full_view=view,
        selected_view=view,
        full_answer="a gradient",
    )


class _Generated:
    """Colours that grow along both sides of an image, by a formula."""

    def load(self, image: ImageRef, *, row: str | None = None) -> Image:
        """Return the image."""
        del row
        import numpy as np
        from PIL import Image

        y, x = np.indices((image.height, image.width))
        pixels = np.stack([x % 256, y % 256, (x * y) % 256], axis=-1).astype(np.uint8)
        return Image.fromarray(pixels)
