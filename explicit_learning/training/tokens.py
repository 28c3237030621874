"""How many tokens an SFT pass trains on, counted before anything is trained.

A cap in loss tokens only means something if the count is the trainer's. So the text that TRL renders for a row is
counted with the model's own tokenizer; a test compares the count with the labels of TRL's collator, token for token.
Images do not matter here: a completion has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.data.prompt import completion_messages, load_system_prompt, prompt_messages
from explicit_learning.data.reading import read_sft_rows
from explicit_learning.inputs.held_out import held_out_of_document
from explicit_learning.inputs.sft_pass import sft_order, sft_prefix
from explicit_learning.plan.geometry import Geometry
from explicit_learning.training.arguments import TEMPLATE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import ProcessorMixin

    from explicit_learning.data.rows import SftRow
    from explicit_learning.inputs.sft_pass import SftPass

__all__ = ["count_sft_pass", "count_sft_steps", "loss_token_counts", "sft_example"]

BATCH = 1024


def sft_example(row: SftRow, system: str) -> dict[str, Any]:
    """Return a row in TRL's prompt-completion form, without its images."""
    return {
        "prompt": prompt_messages(system, row.question, row.choices, image_count=len(row.images)),
        "completion": completion_messages(row.assistant_response),
        "chat_template_kwargs": dict(TEMPLATE_OPTIONS),
    }


def loss_token_counts(processor: ProcessorMixin, rows: Sequence[SftRow], system: str) -> list[int]:
    """Return, for each row, how many tokens have a loss: those of its rendered completion."""
    from trl.data_utils import apply_chat_template, prepare_multimodal_messages

    counts: list[int] = []
    for start in range(0, len(rows), BATCH):
        texts = []
        for row in rows[start : start + BATCH]:
            example = sft_example(row, system)
            # Stand-ins for the images: rendering needs their positions, not their pixels.
            example["prompt"] = prepare_multimodal_messages(example["prompt"], images=[None] * len(row.images))
            texts.append(apply_chat_template(example, processor)["completion"])
        encoded = processor.tokenizer(texts, add_special_tokens=False)
        counts += [len(ids) for ids in encoded["input_ids"]]
    return counts


def count_sft_pass(model: Path, prompt: str, dataset: Path, plan: dict[str, Any]) -> SftPass:
    """Count the pass of an SFT plan that is being frozen.

    Args:
        model: Folder of the base model.
        prompt: The system prompt.
        dataset: The rows' file.
        plan: The filled draft: arm, data seed, batch geometry, cap and what is held out (with the absolute path of the
            file of slots) are read from it.

    Raises:
        Refusal: If a row breaks its contract.
    """
    from explicit_learning.training.policy import load_processor

    rows = _ordered(dataset, plan)
    processor = load_processor(model, max_image_tokens=plan["generation"]["max_image_tokens"])
    return sft_prefix(
        loss_token_counts(processor, rows, prompt),
        rows_per_step=Geometry.of_document(plan).rows_per_cycle,
        max_loss_tokens=plan["budget"]["max_sft_loss_tokens"],
    )


def count_sft_steps(plan: dict[str, Any], steps: int) -> SftPass:
    """Count the tokens of the first steps of a frozen SFT plan, or of fewer if its rows end earlier.

    Args:
        plan: The plan, with absolute paths.
        steps: Number of steps.

    Raises:
        Refusal: If a row breaks its contract.
    """
    from explicit_learning.training.policy import load_processor

    rows = _ordered(Path(plan["data"]["dataset"]["path"]), plan)
    rows_per_step = Geometry.of_document(plan).rows_per_cycle
    prompt = load_system_prompt(Path(plan["prompt"]["path"]))
    model, limit = Path(plan["model"]["path"]), plan["generation"]["max_image_tokens"]
    processor = load_processor(model, max_image_tokens=limit)
    counts = loss_token_counts(processor, rows[: steps * rows_per_step], prompt)
    return sft_prefix(counts, rows_per_step=rows_per_step, max_loss_tokens=None)


def _ordered(dataset: Path, plan: dict[str, Any]) -> list[SftRow]:
    """Return the rows that a plan's arm trains on, in order."""
    held_out = held_out_of_document(plan).groups
    return sft_order(read_sft_rows(dataset), arm=plan["arm"], data_seed=plan["data_seed"], held_out=held_out)
