"""How many tokens an SFT pass trains on, counted before anything is trained.

A cap in loss tokens only means something if the count is the trainer's. So the text that TRL renders for a row is
counted with the model's own tokenizer; a test compares the count with the labels of TRL's collator, token for token.
Images do not matter here: a completion has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.data.prompt import completion_messages, load_system_prompt, prompt_messages
from explicit_learning.data.reading import read_sft_rows
from explicit_learning.data.slots import training_order
from explicit_learning.freeze.freezing import SftPass
from explicit_learning.plan.geometry import Geometry
from explicit_learning.training.arguments import TEMPLATE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers import ProcessorMixin

    from explicit_learning.data.rows import SftRow

__all__ = ["count_sft_pass", "count_sft_steps", "loss_token_counts", "sft_example", "sft_order", "sft_prefix"]

BATCH = 1024


def sft_example(row: SftRow, system: str) -> dict[str, Any]:
    """Return a row in TRL's prompt-completion form, without its images."""
    return {
        "prompt": prompt_messages(system, row.question, row.choices, image_count=len(row.images)),
        "completion": completion_messages(row.assistant_response),
        "chat_template_kwargs": dict(TEMPLATE_OPTIONS),
    }


def sft_order(rows: Iterable[SftRow], *, arm: str, data_seed: int) -> list[SftRow]:
    """Return an arm's rows in training order: a keyed permutation, whatever the order in the file."""
    by_id = {row.record_id: row for row in rows if row.record_kind == ARMS[arm].sft_rows}
    return [by_id[record_id] for record_id in training_order(by_id, data_seed=data_seed, visit=0)]


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


def sft_prefix(counts: Sequence[int], *, rows_per_step: int, max_loss_tokens: int | None) -> SftPass:
    """Return the longest pass of whole steps within a cap.

    Args:
        counts: Loss tokens of each row, in training order.
        rows_per_step: Rows of one optimizer step over all ranks.
        max_loss_tokens: The cap, or ``None`` for all rows.
    """
    steps = tokens = 0
    for start in range(0, len(counts) - rows_per_step + 1, rows_per_step):
        more = sum(counts[start : start + rows_per_step])
        if max_loss_tokens is not None and tokens + more > max_loss_tokens:
            break
        steps, tokens = steps + 1, tokens + more
    records = steps * rows_per_step
    return SftPass(steps=steps, records=records, loss_tokens=tokens, left_out=len(counts) - records)


def count_sft_pass(model: Path, prompt: str, dataset: Path, plan: dict[str, Any]) -> SftPass:
    """Count the pass of an SFT plan that is being frozen.

    Args:
        model: Folder of the base model.
        prompt: The system prompt.
        dataset: The rows' file.
        plan: The filled draft: arm, data seed, batch geometry and cap are read from it.

    Raises:
        Refusal: If a row breaks its contract.
    """
    from explicit_learning.training.policy import load_processor

    rows = sft_order(read_sft_rows(dataset), arm=plan["arm"], data_seed=plan["data_seed"])
    return sft_prefix(
        loss_token_counts(load_processor(model), rows, prompt),
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

    rows = sft_order(read_sft_rows(Path(plan["data"]["dataset"]["path"])), arm=plan["arm"], data_seed=plan["data_seed"])
    rows_per_step = Geometry.of_document(plan).rows_per_cycle
    prompt = load_system_prompt(Path(plan["prompt"]["path"]))
    counts = loss_token_counts(load_processor(Path(plan["model"]["path"])), rows[: steps * rows_per_step], prompt)
    return sft_prefix(counts, rows_per_step=rows_per_step, max_loss_tokens=None)
