"""Items as the model's inputs, in the kit's own prompt form and through the model's own processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.files.resources import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from transformers import Qwen3VLProcessor

    from explicit_learning.data.digits.items import Item, View

__all__ = ["inputs", "prompt"]

IGNORED = -100


def prompt(processor: Qwen3VLProcessor, item: Item) -> str:
    """Return an item's rendered prompt, ending where the response begins."""
    text = item.question
    if item.choices:
        text += "\n\nChoices:\n" + "\n".join(f"{choice['key']}. {choice['text']}" for choice in item.choices)
    messages = [
        {"role": "system", "content": (PROMPTS / "common_system.txt").read_text(encoding="utf-8").strip()},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]},
    ]
    rendered = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    if not isinstance(rendered, str):
        raise TypeError("one conversation gives one text")
    return rendered


def inputs(
    processor: Qwen3VLProcessor, items: Sequence[Item], views: Sequence[View], targets: Sequence[str] | None
) -> dict[str, Any]:
    """Return the model's inputs for one view an item.

    Args:
        processor: The model's processor.
        items: The items.
        views: The view of each that is shown.
        targets: Answer bodies to learn, which adds responses and labels; None for prompts to be continued, which are
            padded on the left.
    """
    from PIL import Image

    prompts = [prompt(processor, item) for item in items]
    images = [[Image.fromarray(view.pixels)] for view in views]
    if targets is None:
        batch = processor(text=prompts, images=images, padding=True, padding_side="left", return_tensors="pt")
        return dict(batch)
    texts = [f"{before}<answer>{target}</answer><|im_end|>\n" for before, target in zip(prompts, targets, strict=True)]
    batch = dict(processor(text=texts, images=images, padding=True, padding_side="right", return_tensors="pt"))
    batch["labels"] = _labels(processor, batch["input_ids"], batch["attention_mask"])
    return batch


def _labels(processor: Qwen3VLProcessor, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the ids with everything up to the response ignored: up to what follows the empty thinking block."""
    import torch

    end = processor.tokenizer.convert_tokens_to_ids("</think>")
    # The response starts two tokens after the block's end: one line break of two characters lies between.
    start = (ids == end).int().argmax(dim=1, keepdim=True) + 2
    position = torch.arange(ids.shape[1])[None, :]
    return torch.where((position >= start) & mask.bool(), ids, torch.full_like(ids, IGNORED))
