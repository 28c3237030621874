"""The model card of an export: the run's, with how to load what lies beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.rundir.export_record import LOGIT_TOLERANCE

if TYPE_CHECKING:
    from explicit_learning.rundir.export_record import ExportComparison, ExportedBase, ExportRecord

__all__ = ["export_card"]

ADAPTER_FRONT, MERGED_FRONT = "library_name: peft\n", "library_name: transformers\n"
LIMIT = """
In training, an image became at most {most} image tokens. The processor's own limit may be higher; for the same limit:

    processor.image_processor.size = {{"shortest_edge": {least_pixels}, "longest_edge": {most_pixels}}}
"""


def export_card(card: str, record: ExportRecord, *, pixels: tuple[int, int] | None, image_tokens: int | None) -> str:
    """Return the card of an export.

    Args:
        card: The card of the run's final adapter.
        record: What was exported.
        pixels: Fewest and most pixels of an image in training; ``None`` if the processor's own limits held.
        image_tokens: The plan's limit on an image's tokens; ``None`` likewise.
    """
    limit = ""
    if pixels is not None:
        limit = LIMIT.format(most=image_tokens, least_pixels=pixels[0], most_pixels=pixels[1])
    front, use = ADAPTER_FRONT, _adapter(record.base_model)
    if record.comparison is not None:
        front, use = MERGED_FRONT, _merged(record, record.comparison)
    head, heading, rest = card.partition("\n## ")
    return f"{head.replace(ADAPTER_FRONT, front, 1)}\n## Load it\n{use}{limit}{heading}{rest}"


def _adapter(base: ExportedBase) -> str:
    revision = "" if base.revision is None else f", revision {base.revision}"
    beside = "" if base.path is None else f" It lies in `{base.path}`, seen from this folder."
    return f"""
This folder holds the adapter, and the processor of the base model. The base model is `{base.name}`{revision}, whose
files have the identity `{base.snapshot_sha256}` (SHA-256 of the canonical JSON of `{{path: SHA-256}}`).{beside}

    from peft import PeftModel
    from transformers import AutoModelForImageTextToText, AutoProcessor

    base = AutoModelForImageTextToText.from_pretrained("BASE", dtype="auto")
    model = PeftModel.from_pretrained(base, "THIS FOLDER")
    processor = AutoProcessor.from_pretrained("THIS FOLDER")
"""


def _merged(record: ExportRecord, found: ExportComparison) -> str:
    base = record.base_model
    return f"""
This folder holds the weights of `{base.name}` with the adapter merged into them: each matrix was computed in float32
and rounded once, to {record.dtype}. Nothing else is needed, neither the base model nor PEFT:

    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained("THIS FOLDER", dtype="auto")
    processor = AutoProcessor.from_pretrained("THIS FOLDER")

or, with vLLM, `vllm serve "THIS FOLDER"`. Read back, the weights were compared with base model and adapter in float32
(asked: {found.asked}). {found.equal_answers} of {found.rows} greedy answers are the same, and logits differ by at most
{found.largest_logit_difference:.2g} (in float32, at most {LOGIT_TOLERANCE:g} is accepted).
"""
