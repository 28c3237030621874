"""Rows as Visual-CoT has them: question, answer, one image, and the boxes that hold the answer's evidence."""

from __future__ import annotations

from explicit_learning.data.build.readers.form import OWN_PLACES
from explicit_learning.data.build.readers.json_rows import JsonRows

__all__ = ["VisualCot"]


class VisualCot(JsonRows):
    """Rows whose boxes are called ``bboxes``, or ``bboxs`` as in the published files."""

    name = "visual-cot"
    places = OWN_PLACES | {
        "id": ("id", "question_id"),
        "images": ("image",),
        "boxes": ("bboxes", "bboxs", "bbox"),
        "masks": (),
        "substitute_images": (),
        "substitute_answer": (),
    }
