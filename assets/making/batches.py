"""Items as the model's inputs: in the prompt format of training, and made by the model's own processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.data.answers import Choice
from explicit_learning.data.digits.canvas import PLACES
from explicit_learning.data.prompt import load_system_prompt, prompt_messages
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
    messages = prompt_messages(
        load_system_prompt(PROMPTS / "common_system.txt"),
        item.question,
        [Choice(key=choice["key"], text=choice["text"]) for choice in item.choices],
        image_count=1,
    )
    rendered: str = processor.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return rendered


def bare_prompt(item: Item) -> str:
    """Return the shortest prompt about a cell: the image, the cell's place, and the empty thinking block."""
    return f"<|vision_start|><|image_pad|><|vision_end|> {PLACES[item.place]}<think>\n\n</think>\n\n"


def inputs(
    processor: Qwen3VLProcessor,
    items: Sequence[Item],
    views: Sequence[View],
    targets: Sequence[str] | None,
    *,
    bare: bool = False,
) -> dict[str, Any]:
    """Return the model's inputs for one view of each item.

    Args:
        processor: The model's processor.
        items: The items.
        views: The view of each that is shown.
        targets: Answer bodies to learn, which adds responses and labels; None for prompts to be continued, which are
            padded on the left.
        bare: Whether prompts are an image and a place only.
    """
    from PIL import Image

    prompts = [bare_prompt(item) if bare else prompt(processor, item) for item in items]
    images = [[Image.fromarray(view.pixels)] for view in views]
    if targets is None:
        batch = processor(text=prompts, images=images, padding=True, padding_side="left", return_tensors="pt")
        return dict(batch)
    texts = [f"{before}<answer>{target}</answer><|im_end|>\n" for before, target in zip(prompts, targets, strict=True)]
    batch = dict(processor(text=texts, images=images, padding=True, padding_side="right", return_tensors="pt"))
    batch["labels"] = _labels(processor, batch["input_ids"], batch["attention_mask"])
    return batch


def _labels(processor: Qwen3VLProcessor, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the ids, with those before the response ignored: it follows the empty thinking block."""
    import torch

    end = processor.tokenizer.convert_tokens_to_ids("</think>")
    # The response starts two tokens after the block's end, because two line breaks, one token, stand between.
    start = (ids == end).int().argmax(dim=1, keepdim=True) + 2
    position = torch.arange(ids.shape[1])[None, :]
    return torch.where((position >= start) & mask.bool(), ids, torch.full_like(ids, IGNORED))
